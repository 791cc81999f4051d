def ensure(address=None):
    return address
