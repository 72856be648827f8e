"""Lineage as OpenLineage has it: a job per view, with its inputs, its output and its columns.

Names of datasets are those of OpenLineage's conventions, so that what other programs say of the
same tables meets what is said here. A password is never a part of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from mview.admin.content import sink_path
from mview.catalog.followers import table_in_sink
from mview.cli.checking import Checked
from mview.cli.explore.datasets import DatasetName, sink_dataset, table_dataset
from mview.clock import utc_text
from mview.config import Config
from mview.ivm.made_of import made_of
from mview.relation import RelationId
from mview.schema import TableSchema, type_name
from mview.store.layout import Store

_SPEC = "https://openlineage.io/spec"
_CORE = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs"

#: The editions of the facets that are written, by the names of their schemas.
_EDITIONS = {
    "ColumnLineageDatasetFacet": "1-2-0",
    "DatasetVersionDatasetFacet": "1-0-1",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "ProcessingEngineRunFacet": "1-1-1",
    "SQLJobFacet": "1-1-0",
    "SchemaDatasetFacet": "1-2-0",
}

#: What has become of a run of a job.
Transition = Literal["START", "RUNNING", "COMPLETE", "FAIL"]


@dataclass(frozen=True)
class Wrote:
    """What epochs have done to a view.

    Attributes:
        first, last: their numbers.
        inserted, updated, deleted: rows, in all.
        rows: rows of the view after the last one.
        watermark: source milliseconds; None: unknown.
    """

    first: int
    last: int
    inserted: int
    updated: int
    deleted: int
    rows: int
    watermark: int | None

    def and_then(self, later: Wrote) -> Wrote:
        """These epochs and later ones."""
        return Wrote(
            self.first,
            later.last,
            self.inserted + later.inserted,
            self.updated + later.updated,
            self.deleted + later.deleted,
            later.rows,
            self.watermark if later.watermark is None else later.watermark,
        )


class ViewJobs:
    """The jobs of views that were checked and are sound.

    Args:
        config: has the connections and the store.
        checked: the views.
        schemas: of tables and views, as far as they are known for sure.
    """

    def __init__(
        self, config: Config, checked: Sequence[Checked], schemas: Mapping[RelationId, TableSchema]
    ) -> None:
        self._config, self._schemas = config, schemas
        self._views = {view.definition.name: view for view in checked}
        store, declared = Store(config.store), [view.definition for view in checked]
        self._paths = {view.relation: sink_path(config, store, view) for view in declared}
        own = None if config.openlineage is None else config.openlineage.namespace
        self._namespace = own or f"mview:{Path(config.store)}"
        self._version = version("mview-engine")
        self._producer = f"urn:mview-engine:{self._version}"

    @property
    def names(self) -> list[str]:
        """The views, in DAG order."""
        return [*self._views]

    def job_event(self, name: str, now_ms: int) -> dict[str, Any]:
        """A JobEvent of a view: what it is, whether or not it runs.

        Args:
            now_ms: wall milliseconds.
        """
        return {
            **self._event("JobEvent", now_ms),
            "job": self._job(name),
            "inputs": self._inputs(name),
            "outputs": self._outputs(name),
        }

    def run_event(
        self,
        name: str,
        run_id: str,
        transition: Transition,
        now_ms: int,
        *,
        every_s: float,
        once: bool,
        wrote: Wrote | None = None,
        error: str = "",
    ) -> dict[str, Any]:
        """A RunEvent of a view.

        Args:
            run_id: of the run of this view, a UUID.
            now_ms: wall milliseconds.
            every_s: seconds between two events; 0: one per epoch.
            once: the run takes what is there, and ends.
            wrote: what epochs have done since the last event.
            error: why the run failed.
        """
        run: dict[str, Any] = {
            "processing_engine": self._facet(
                "ProcessingEngineRunFacet", name="mview", version=self._version
            )
        }
        outputs = self._outputs(name)
        if wrote is not None:
            # Of the view's own table, which is the first; sinks follow it later.
            output = outputs[0]
            run["mview_epochs"] = self._own_facet(
                first=wrote.first,
                last=wrote.last,
                inserted=wrote.inserted,
                updated=wrote.updated,
                deleted=wrote.deleted,
                rows=wrote.rows,
                watermark=None if wrote.watermark is None else _instant(wrote.watermark),
            )
            output["facets"]["version"] = self._facet(
                "DatasetVersionDatasetFacet", datasetVersion=str(wrote.last)
            )
            output["outputFacets"] = {
                "outputStatistics": self._facet(
                    "OutputStatisticsOutputDatasetFacet", rowCount=wrote.inserted + wrote.updated
                )
            }
        if error:
            run["errorMessage"] = self._facet(
                "ErrorMessageRunFacet", message=error, programmingLanguage="SQL"
            )
        job = self._job(name)
        job["facets"]["jobType"] = self._facet(
            "JobTypeJobFacet",
            processingType="BATCH" if once else "STREAMING",
            integration="MVIEW",
            jobType="VIEW",
            emissionPattern=_pattern(every_s),
        )
        return {
            **self._event("RunEvent", now_ms),
            "eventType": transition,
            "run": {"runId": run_id, "facets": run},
            "job": job,
            "inputs": self._inputs(name),
            "outputs": outputs,
        }

    # --- parts of events -------------------------------------------------------------------------

    def _event(self, kind: str, now_ms: int) -> dict[str, Any]:
        return {
            "eventTime": _instant(now_ms),
            "producer": self._producer,
            "schemaURL": f"{_CORE}/{kind}",
        }

    def _facet(self, what: str, **fields: Any) -> dict[str, Any]:
        url = f"{_SPEC}/facets/{_EDITIONS[what]}/{what}.json#/$defs/{what}"
        return {"_producer": self._producer, "_schemaURL": url, **fields}

    def _own_facet(self, **fields: Any) -> dict[str, Any]:
        """A facet that only mview has: all that the specification says of it is what it is."""
        return {"_producer": self._producer, "_schemaURL": f"{_CORE}/RunFacet", **fields}

    def _job(self, name: str) -> dict[str, Any]:
        query = self._views[name].definition.sql
        return {
            "namespace": self._namespace,
            "name": name,
            "facets": {"sql": self._facet("SQLJobFacet", query=query)},
        }

    def _inputs(self, name: str) -> list[dict[str, Any]]:
        read = sorted(set(self._views[name].definition.table_names))
        return [self._dataset(relation) for relation in read]

    def _outputs(self, name: str) -> list[dict[str, Any]]:
        """The view's own table, and what follows it in sinks; a light view has the latter alone."""
        view = self._views[name].definition
        own = self._output(name, self._name(view.relation))
        outputs = [own] if view.mode == "full" else []
        for sink in view.sinks:
            dataset = sink_dataset(self._config, view, sink)
            if dataset is None:
                dataset = self._namespace, f"{sink}.{table_in_sink(self._config, view, sink)}"
            options = {**self._config.sinks.get(sink, {}), **view.sinks[sink]}
            if options.get("mode") == "changelog":  # it has columns of its own
                outputs.append({"namespace": dataset[0], "name": dataset[1], "facets": {}})
            else:
                outputs.append(self._output(name, dataset))
        return outputs

    def _output(self, name: str, dataset: DatasetName) -> dict[str, Any]:
        """The rows of a view, under the name of one of its tables."""
        view = self._views[name]
        output = self._dataset(view.definition.relation, dataset)
        made = made_of(view.plan) if view.plan else None
        if made is not None:
            fields = {
                column: {
                    "inputFields": [
                        dict(
                            zip(("namespace", "name"), self._name(source.relation), strict=True),
                            field=source.column,
                        )
                        for source in sorted(sources)
                    ]
                }
                for column, sources in made.items()
            }
            output["facets"]["columnLineage"] = self._facet(
                "ColumnLineageDatasetFacet", fields=fields
            )
        return output

    def _dataset(self, relation: RelationId, name: DatasetName | None = None) -> dict[str, Any]:
        namespace, text = name or self._name(relation)
        facets = {}
        if (schema := self._schemas.get(relation)) is not None:
            fields = [{"name": c.name, "type": type_name(c.type)} for c in schema.columns]
            facets["schema"] = self._facet("SchemaDatasetFacet", fields=fields)
        return {"namespace": namespace, "name": text, "facets": facets}

    def _name(self, relation: RelationId) -> DatasetName:
        if relation.is_table:
            return table_dataset(self._config, relation)
        known = self._paths.get(relation)
        # One that the store has, and that was not asked for.
        return "file", known or str(Store(self._config.store).view_target(relation.name))


def _instant(ms: int) -> str:
    return utc_text(ms).replace(" ", "T") + "Z"


def _pattern(every_s: float) -> dict[str, Any]:
    """When events of a run are written: each tells what came since the one before."""
    told = {"eventContentMode": "ACCUMULATIVE"}
    if not every_s:
        return {"eventTrigger": "EVENT_BASED", **told}
    return {"eventTrigger": "PERIODIC", **told, "windowDuration": max(1, round(every_s))}
