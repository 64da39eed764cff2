"""Power cuts and kills, for real: what a host is like that lost power, or its run, at a random instant.

A host's file system is an image on a loop device with direct I/O. A copy of that image at an instant is what a power cut leaves: what
was synced is in it, what was not may be missing or empty (`python -m lab.powercut` shows that first). The copy is a reflink, made
while the image's file system holds its writes, so it is of one instant. It is mounted, which replays the journal as after a boot;
the next run has to converge there, and a removal has to leave what was found before us.

    disks.py     images on a file system that can reflink, and their copies
    machine.py   a root over such an image, with processes, users and a network of its own
    subject.py   what is applied to it, upgraded, removed and pulled
    trial.py     one cut or kill, and what is checked after it
"""
