"""Traffic that servers record: who asked what when, never a text.

    records     the columns of a request, and how the outcomes are called
    recording   one file: a head, then blocks of new hPLMs and of records
    recorder    a bounded buffer that requests are noted in, and the thread that writes it
    segments    the files of one process, and how much of the disk all of them take

Files lie in `HOME/traffic/`, each of one process. `builder.traffic` makes figures and traces of them.
"""
