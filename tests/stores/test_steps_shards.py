"""Step datasets whose rows are spread over files: the exam of every writer again."""

from tests.stores.test_steps_writer import Kit
from tests.writer_contract import WriterContract


class Shards(Kit):
    shard_rows = 4


KIT = Shards()


class TestWriter(WriterContract):
    kit = KIT
