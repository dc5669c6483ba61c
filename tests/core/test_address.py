"""Addresses: one of IPv4 stands for itself, however it is written, and one of IPv6 for its network."""

import pytest

from strandline.core.address import belongs_to, is_served_by


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
    ],
)
def test_what_one_client_may_have_many_of_is_taken_together(address: str, owner: str) -> None:
    assert belongs_to(address) == owner


@pytest.mark.parametrize(
    ("host", "listens", "is_own"),
    [
        ("gate.example", "gate.example", True),
        ("localhost", "127.0.0.1", True),
        ("::1", "0.0.0.0", True),
        ("gate.example", "0.0.0.0", False),
        ("127.0.0.1", "192.0.2.7", False),
        ("192.0.2.7", "127.0.0.1", False),
    ],
)
def test_who_listens_is_known_by_the_names_that_need_no_asking(host: str, listens: str, is_own: bool) -> None:
    assert is_served_by(host, listens) is is_own
