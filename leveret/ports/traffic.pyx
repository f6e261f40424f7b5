"""How much has gone one way so far: counted where messages pass, in compiled code."""


cdef class Traffic:
    """Messages and their bytes: content header, body and address, as they are stored."""
