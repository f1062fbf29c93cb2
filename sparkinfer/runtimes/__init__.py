"""One file per inference framework, each a `core.protocols.Runtime`; `core.registry` opens them by name. Executor side.

The runtimes do not know each other. What two of them share stands in the private modules `_batches` (numpy) and
`_torch`.
"""
