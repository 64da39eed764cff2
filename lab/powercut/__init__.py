"""Power cuts and kills, for real: the state of a host that lost its power, or its run, at a random instant.

A host's file system is an image on a loop device with direct I/O. A copy of that image at an instant is what a power cut leaves:
what was synced is in it, what was not may be missing or empty (`python -m lab.powercut` proves that first). The copy is a
reflink, for which the kernel holds back writes to the image, so it is of one instant. Mounting it replays the journal, as a boot
does; then the next run has to converge, and a removal has to leave the machine as it was before us.

    disks.py     images on a file system that can reflink, and their copies
    machine.py   a root over such an image, with processes, users and a network of its own
    subject.py   what is applied to it, upgraded, removed and pulled
    engine.py    the real engine and our provider, which apply it over SSH
    trial.py     one cut or kill, and what is checked after it
"""
