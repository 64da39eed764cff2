"""The stack file: its sections as pydantic models, its hosts and inventories, its errors in words.

`gpu_fleet.stackfile.config` puts them together and is what the rest of the program imports.

    values, hosts, alerts, sections   shape: names, single values and meanings, as editors show them
    hostlist, inventory_file, ansible host lists of every kind become HostSpecs
    checks/                           what sections must be together, and with the files they name
    problems                          how an error reads
    schema                            the JSON schema for editors
"""
