"""The part of the judge that runs inside the sandbox: standard library only, started by `python -I -S`.

Its modules are loaded twice: in the sandbox under the name `sandbox`, and by the judge, which shares the encoding.
"""
