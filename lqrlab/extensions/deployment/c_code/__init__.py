"""The translator: a traced step of a controller or plant becomes a function in C.

In the order of the work: :mod:`flattening` writes calls out, :mod:`translation` goes through the equations with the
table of :mod:`primitives`, :mod:`indexing` and :mod:`control_flow`, on :mod:`arrays` of :mod:`expressions` of
:mod:`operations`; :mod:`tidying` leaves out what nobody reads.
"""
