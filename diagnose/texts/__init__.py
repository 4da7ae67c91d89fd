"""Bytes to logical lines, numbers, and `key: value` points: all that any console reader needs before it knows a format.

Each step mends a failure seen in real logs: UTF-16 from PowerShell, NUL runs after a crash, colours, bars that redraw
themselves, records glued to a bar, prefixes of launchers and schedulers. Everything streams; memory is bounded by
`LONGEST` bytes a line; every pattern is linear in the line. Nothing here knows a framework.
"""

from diagnose.texts.decoding import BLOCK, LONGEST, MOST_NOTES, Line, head, lines, peel, seconds
from diagnose.texts.literals import parsed, plain, shallow
from diagnose.texts.mining import Miner, Point, pairs
from diagnose.texts.numbers import NUM, number

__all__ = [
    "BLOCK",
    "LONGEST",
    "MOST_NOTES",
    "NUM",
    "Line",
    "Miner",
    "Point",
    "head",
    "lines",
    "number",
    "pairs",
    "parsed",
    "peel",
    "plain",
    "seconds",
    "shallow",
]
