"""The compiled core: loops over arrays in plain C, each with a typed face in Python.

Rules:

- Headers in `source/` declare every function, with the length of each array; `library` reads them,
  so that a signature stands once. A module here has the functions of the C file of its name.
- A C file knows arrays alone. What a schedule, an operation or a cost is stays in Python, and
  nothing that a user adds to bfpp needs C.
- Functions check the indices that they are given: malformed arrays raise `ValueError`.
- They are called without Python's global lock, and share no state: threads may run them together.
"""
