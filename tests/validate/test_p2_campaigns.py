"""What benchmarks/p2_testbed.py asks of gloo and of NCCL."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.collectives.dsl import ALL_REDUCE
from meshwright.validate.bed_rows import Result, cases
from p2_testbed_cases import (
    Campaign,
    campaign_named,
    chosen,
    nccl_environment,
    predictions,
    sessions,
    waiting,
)

EIGHT = "2x4 800/4000"


def measured(campaign: Campaign, load: float) -> list[Result]:
    """A time of every program of every case of one network."""
    return [
        Result(
            network=case.key[0],
            axes=case.key[1],
            reduce=case.key[2],
            matrix=case.key[3],
            program=str(ALL_REDUCE),
            payload=campaign.payload,
            seconds=(),
            load=(load,),
        )
        for case in cases(EIGHT, campaign.clusters[EIGHT])
    ]


def test_each_rank_is_a_machine_to_nccl() -> None:
    campaign = campaign_named("nccl", "tree")
    assert {name: cluster.machine for name, cluster in campaign.clusters.items()} == {
        "2x2 800/4000": "process",
        EIGHT: "process",
        "4x2 800/4000": "process",
        "2x2x2 800/3200/4000": "process",
    }
    assert campaign.inside == frozenset(campaign.clusters)


def test_what_nccl_is_told() -> None:
    assert nccl_environment("tree") == {
        "NCCL_ALGO": "ring;allreduce:tree",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_NCHANNELS": "2",
        "NCCL_MAX_NCHANNELS": "2",
        "NCCL_BUFFSIZE": "524288",
    }


@pytest.mark.parametrize(("backend", "algorithm"), [("gloo", "tree"), ("mpi", "ring")])
def test_refusals(backend: str, algorithm: str) -> None:
    with pytest.raises(InputError, match="give gloo with ring, or nccl with ring or tree"):
        campaign_named(backend, algorithm)


def test_cases_of_a_network_share_their_ranks_on_nccl_alone() -> None:
    gloo, nccl = campaign_named("gloo", "ring"), campaign_named("nccl", "ring")
    assert all(len(session) == 1 for session in sessions(gloo, waiting(gloo, [])))
    together = sessions(nccl, waiting(nccl, []))
    assert sorted(session[0].network for session in together) == sorted(nccl.clusters)
    assert all(len({case.network for case in session}) == 1 for session in together)
    assert sum(map(len, together)) == 48


def test_a_campaign_goes_on_where_it_ended() -> None:
    campaign = campaign_named("nccl", "ring")
    left = waiting(campaign, measured(campaign, load=16.0))
    assert len(left) == 36
    assert EIGHT not in {case.network for case in left}


def test_a_sample_has_the_predicted_best_and_all_reduce() -> None:
    campaign = campaign_named("nccl", "tree")
    cluster = campaign.clusters[EIGHT]
    case = next(cases(EIGHT, cluster))
    every, sample = predictions(campaign, case, cluster), chosen(campaign, case, cluster)
    assert (len(every), len(sample), len(set(sample))) == (47, 24, 24)
    assert sample == chosen(campaign, case, cluster)
    assert set(every[:10]) <= set(sample)
    assert ALL_REDUCE in {it.program for it in sample}
