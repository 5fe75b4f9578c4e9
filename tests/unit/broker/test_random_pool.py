"""Random bytes: as many as asked for, each once."""

from isthmus.broker.random_pool import RandomPool


def test_hands_out_as_many_as_asked_for_and_none_twice():
    pool = RandomPool()
    made = [pool(count) for count in (8, 16, 4096, 1, 10_000, 8) * 20]
    assert [len(each) for each in made] == [8, 16, 4096, 1, 10_000, 8] * 20
    long = [each for each in made if len(each) >= 8]
    assert len(set(long)) == len(long)
    assert pool(0) == b""


def test_two_pools_have_nothing_in_common():
    assert RandomPool()(16) != RandomPool()(16)
