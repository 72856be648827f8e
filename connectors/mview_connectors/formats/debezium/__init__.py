"""Debezium's messages, as its converters write them."""

from mview_connectors.formats.debezium.format import DebeziumFormat as DebeziumFormat
