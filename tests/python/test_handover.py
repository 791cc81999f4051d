"""What plug-ins of frameworks send and receive by (wsync._handover)."""
import numpy
import pytest
import world
from wsync._handover import Receiver, Sender


class Broken:
    dtype, shape = numpy.dtype("float32"), (4,)

    def copy(self):
        raise MemoryError("no memory for a copy")


def test_all_is_taken_after_an_error():
    "ranks that gather for the sender wait for it: it takes all tensors, also where one cannot be copied; then it goes on"
    world.need_fuse()
    agent = world.Agent()
    sender, receiver, taken = Sender("actor", agent=f"unix:{agent.sock}"), Receiver(agent.url, world.unique("mnt")), []

    def pairs(*tensors):
        for i, tensor in enumerate(tensors):
            taken.append(i)
            yield f"t{i}.weight", tensor

    whole = [numpy.arange(4, dtype=numpy.float32) + i for i in range(3)]
    try:
        sender.announce()
        with pytest.raises(MemoryError, match="no memory for a copy"):
            sender.send(pairs(whole[0], Broken(), whole[2]))
        assert taken == [0, 1, 2]
        told = sender.announce()
        sender.send(pairs(*whole))
        got = {name: numpy.array(tensor) for name, tensor in receiver.receive(told)}
        assert all((got[f"t{i}.weight"] == tensor).all() for i, tensor in enumerate(whole))
    finally:
        receiver.close()
        sender.close()
