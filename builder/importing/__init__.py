"""Adapters of other libraries, read into the parts that this project serves.

`folder.read_folder` tells the libraries' folders apart; `hplms.import_hplm` makes an hPLM of one.
"""
