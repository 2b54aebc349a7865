"""Reads traces of any format that people publish: what a file holds is told from its content, not from its name.

:func:`~serving_gym.envs.workload.reading.load.read_trace` gives the requests and a report on them, one file of this
package reads one format, and :mod:`~serving_gym.envs.workload.reading.writing` writes our own.
"""
