"""The metrics, as Prometheus reads them; and the dashboard, which shows no other ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mview.admin.lights import LightStatus
from mview.admin.status import SinkStatus, SourceStatus, TableStatus, status
from mview.cli.watch.metrics import METRICS, metrics_text
from mview.cli.watch.site import Site
from mview.cli.watch.told import RunHeard
from tests.cli.watch.conftest import serving
from tests.cli.watch.made import EVIL
from tests.services.fixtures import running
from tests.services.process import wait_until
from tests.services.prometheus import PrometheusServer

ROOT = Path(__file__).parents[3]
HOSTILE = 'a"b\\c\nd{}=,é'


def parsed(text):
    """By name and labels, as the official parser reads them."""
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type in ("gauge", "counter"), family.name
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def of(samples, name, **labels):
    return samples[name, frozenset(labels.items())]


def test_the_metrics_of_a_store(page, made):
    answer = page.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = parsed(answer.text)
    assert of(samples, "mview_epoch") == 3
    assert of(samples, "mview_running") == 0
    assert of(samples, "mview_store_readable") == 1
    assert of(samples, "mview_table_rows", table="shop.orders") == 1234
    assert of(samples, "mview_table_loaded", table=f"crm.{EVIL}") == 0
    assert of(samples, "mview_view_freshness_seconds", view="totals") == 900000 * 3600
    assert of(samples, "mview_view_lag_seconds", view="open_orders") >= 0.8
    assert of(samples, "mview_view_info", view="totals", strategy="SELF_MAINTAINED") == 1
    assert of(samples, "mview_sink_failing", view="open_orders", sink="cache") == 0
    published = made.log.latest().created_ms / 1000
    assert of(samples, "mview_published_timestamp_seconds") == published


def test_counters_count_what_is_published_from_now_on(made):
    site = Site(made.config, made.mask)
    site._epochs.follow()

    def count(kind):
        samples = parsed(site.answer("/metrics").body.decode())
        return of(samples, "mview_view_changed_rows_total", view="totals", kind=kind)

    assert count("updated") == 0
    for _ in range(2):
        made.epoch()
        site._epochs.follow()
        site._epochs.follow()
    assert (count("inserted"), count("updated")) == (2, 4)
    # An epoch that does not change the view has its counts from before.
    latest = made.log.latest()
    made.log.publish(replace(latest, epoch=latest.epoch + 1))
    site._epochs.follow()
    assert count("updated") == 4
    samples = parsed(site.answer("/metrics").body.decode())
    assert of(samples, "mview_epochs_total") == 3
    assert of(samples, "mview_view_maintain_seconds_total", view="totals") == 0.5


def everything(made):
    """All metrics, with hostile names."""
    told = status(made.config)
    sink = SinkStatus(HOSTILE, "t", 3, -1, 10, 1500, 0, error="refused")
    light = LightStatus("l", HOSTILE, "t", "live", rows=7, lag_ms=2500)
    view = replace(told.views[0], name=HOSTILE, sinks=(sink,), halted="why", missed=True)
    table = TableStatus("crm.t", "loading", 5, 2, chunks=8, rows_expected=90, held="paused")
    told = replace(
        told,
        tables=(table,),
        views=(view,),
        lights=(light,),
        unbuilt=("later",),
        running="process 7",
        sources=(
            SourceStatus(HOSTILE, 1250, True),
            SourceStatus("crm", None, None, away="no answer", away_since_ms=1),
        ),
    )
    run = RunHeard()
    for _ in range(2):
        epoch = {"stages": {"net": 20.0}, "views": {}, "duration_ms": 30, "dropped": 4}
        run.take({"time": "t", "event": "epoch", "changes": {"shop.orders": 3}, **epoch})
    site = Site(made.config, made.mask)
    site._epochs.follow()
    return metrics_text(told, False, site._epochs, run, made.mask)


def test_labels_are_escaped_and_all_there_is_has_a_value(made):
    samples = parsed(everything(made))
    assert of(samples, "mview_view_halted", view=HOSTILE) == 1
    assert of(samples, "mview_sink_waiting_epochs", view=HOSTILE, sink=HOSTILE) == -1
    assert of(samples, "mview_sink_waiting_bytes", view=HOSTILE, sink=HOSTILE) == 10
    assert of(samples, "mview_sink_lag_seconds", view=HOSTILE, sink=HOSTILE) == 1.5
    assert of(samples, "mview_sink_failing", view=HOSTILE, sink=HOSTILE) == 1
    assert of(samples, "mview_light_rows_total", view="l", sink=HOSTILE) == 7
    assert of(samples, "mview_view_built", view="later") == 0
    assert of(samples, "mview_table_expected_rows", table="crm.t") == 90
    assert of(samples, "mview_table_chunks", table="crm.t") == 8
    assert of(samples, "mview_table_released_chunks", table="crm.t") == 2
    assert of(samples, "mview_table_held", table="crm.t") == 1
    assert of(samples, "mview_source_lag_seconds", connection=HOSTILE) == 1.25
    assert of(samples, "mview_source_away", connection=HOSTILE) == 0
    assert of(samples, "mview_source_away", connection="crm") == 1
    assert of(samples, "mview_run_stage_seconds_total", stage="net") == 0.04
    assert of(samples, "mview_run_epoch_seconds_total") == 0.06
    assert of(samples, "mview_run_changed_rows_total", table="shop.orders") == 6
    assert of(samples, "mview_run_dropped_changes_total") == 8
    assert {name for name, _ in samples} == {metric.name for metric in METRICS}


def test_names_are_as_prometheus_wants_them():
    for metric in METRICS:
        assert re.fullmatch(r"mview_[a-z_]+", metric.name), metric.name
        assert (metric.kind == "counter") is metric.name.endswith("_total"), metric.name
        assert "\n" not in metric.help
        assert not re.search(r"_(ms|milliseconds|kb|mb|count)(_|$)", metric.name), metric.name


def test_a_store_that_cannot_be_read_is_a_metric(made):
    (made.store.manifests / f"{3:020d}.json").write_text("{")
    samples = parsed(Site(made.config, made.mask).answer("/metrics").body.decode())
    assert of(samples, "mview_store_readable") == 0
    assert of(samples, "mview_ready") == 0


def test_the_dashboard_names_metrics_that_exist():
    board = json.loads((ROOT / "docs/watch/grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    variables = [each["query"] for each in board["templating"]["list"]]
    queries += [query["query"] for query in variables if isinstance(query, dict)]
    named = [set(re.findall(r"\bmview_\w+", query)) for query in queries]
    assert len(queries) > 8
    assert all(named)
    known = {metric.name for metric in METRICS}
    assert set().union(*named) <= known


def test_the_alerting_rules_name_metrics_and_labels_that_exist(made):
    rules = yaml.safe_load((ROOT / "docs/watch/alerts.yml").read_text())
    (group,) = rules["groups"]
    alerts = group["rules"]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 6
    known = {name: set() for name in (metric.name for metric in METRICS)}
    for name, labels in parsed(everything(made)):
        known[name] |= {label for label, _ in labels}
    for rule in alerts:
        named = set(re.findall(r"\bmview_\w+", rule["expr"]))
        assert named
        assert named <= known.keys(), rule["alert"]
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        # What Prometheus adds, and what the metrics of the rule have.
        labels = {"instance"}.union(*(known[name] for name in named))
        texts = " ".join(rule["annotations"].values())
        for label in re.findall(r"\$labels\.(\w+)", texts):
            assert label in labels, (rule["alert"], label)
        for labels_joined in re.findall(r"on\(([^)]*)\)", rule["expr"]):
            assert set(labels_joined.split(", ")) <= labels, rule["alert"]


def test_what_somebody_is_called_for_is_on_the_dashboard():
    rules = yaml.safe_load((ROOT / "docs/watch/alerts.yml").read_text())
    board = json.loads((ROOT / "docs/watch/grafana.json").read_text())
    drawn = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    for rule in rules["groups"][0]["rules"]:
        for name in re.findall(r"\bmview_\w+", rule["expr"]):
            assert any(name in expr for expr in drawn), (rule["alert"], name)


@pytest.mark.service
@pytest.mark.long
def test_prometheus_answers_each_panel_and_takes_each_alert(made):
    """All metrics as they are served, read by a real one: every panel has something to show."""
    board = json.loads((ROOT / "docs/watch/grafana.json").read_text())
    text = everything(made)
    answer = replace(Site(made.config, made.mask).answer("/metrics"), body=text.encode())
    with serving(lambda _: answer) as page:

        def start(folder):
            return PrometheusServer(
                folder, f"127.0.0.1:{page.port}", ROOT / "docs/watch/alerts.yml"
            )

        with running("Prometheus", start) as prometheus:
            twice = "count_over_time(mview_epoch[1m]) > 1"
            wait_until(lambda: prometheus.query(twice), "a second look")
            assert prometheus.values("instance", "mview_info") == [f"127.0.0.1:{page.port}"]
            for panel in board["panels"]:
                for target in panel.get("targets", []):
                    expr = target["expr"].replace("$instance", ".*")
                    expr = expr.replace("$__rate_interval", "1m")
                    assert "$" not in expr
                    assert prometheus.query(expr), (panel["title"], expr)
            wait_until(
                lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()), "rules"
            )
            assert len(prometheus.rules()) > 6
            assert {rule["health"] for rule in prometheus.rules()} == {"ok"}
            labels = {name for s in prometheus.query('{job="mview"}') for name in s["metric"]}
            for panel in board["panels"]:
                for target in panel.get("targets", []):
                    shown = re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", ""))
                    assert set(shown) <= labels, panel["title"]
