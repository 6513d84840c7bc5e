"""PLOT, the n-gram lookup table: its format, written and read here, and the lookup that replaces the lower layers."""

from backends.plot.chain import PlotChain, PlotLookup, Resolved
from backends.plot.header import Store, TableHeader, TableSpec
from backends.plot.keys import fragment_keys, fragments, pack, right_bigram, unigram, unpack
from backends.plot.statistics import HitStatistics
from backends.plot.table import Table
from backends.plot.writer import TableWriter

__all__ = [
    "HitStatistics",
    "PlotChain",
    "PlotLookup",
    "Resolved",
    "Store",
    "Table",
    "TableHeader",
    "TableSpec",
    "TableWriter",
    "fragment_keys",
    "fragments",
    "pack",
    "right_bigram",
    "unigram",
    "unpack",
]
