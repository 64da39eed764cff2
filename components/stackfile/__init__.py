"""The stack file as it is written: one pydantic model per section, names and meanings as an editor shows them.

Shape and single values only. What needs two sections, a file or the expanded hosts is checked in `components.config`.
"""
