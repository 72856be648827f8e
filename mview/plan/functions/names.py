"""Spark's built-in functions as views see them: which they may call, how, and which not and why.

A test holds the lists against Spark: every function stands in one of them, with its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Names of one kind, apart by spaces.
_Names = frozenset[str]


@dataclass(frozen=True)
class Refusal:
    """Why a view may not call a function.

    Attributes:
        code: short name of the reason.
        why: what follows after the function's name.
        hint: what to write instead.
    """

    code: str
    why: str
    hint: str


_REACHES_OUT = Refusal(
    "REACHES_OUT",
    "can run code or read files; a view reads its tables and nothing else",
    "declare a Python function under 'functions:' in the configuration, which says what runs",
)
_SESSION = Refusal(
    "SESSION_DEPENDENT",
    "depends on who runs the view, which is the same for all readers",
    "leave it out of the view and filter by it when reading",
)
_ENVIRONMENT = Refusal(
    "ENVIRONMENT",
    "tells where and by what a query runs, not what stands in the tables",
    "leave it out of the view",
)
_RANDOM = Refusal(
    "NONDETERMINISTIC",
    "gives another result each time; a view of it cannot be kept right",
    "compute it in the source table",
)
_ORDER = Refusal(
    "ORDER_DEPENDENT",
    "depends on the order in which rows are read, which is another one each time",
    "use min, max, min_by, max_by, or percentile; or a window function with ORDER BY",
)
_SKETCH = Refusal(
    "ORDER_DEPENDENT",
    "makes or reads a sketch, which depends on the order in which rows are read",
    "use count(DISTINCT …), approx_count_distinct or percentile",
)
_TYPE = Refusal(
    "UNSUPPORTED",
    "is of a type or a feature that no sink can hold or Spark has not switched on",
    "use dates and timestamps, date_trunc, or texts",
)

_REFUSED: Mapping[str, Refusal] = {
    """
    from_avro from_protobuf from_xml java_method reflect schema_of_avro schema_of_xml to_avro
    to_protobuf to_xml try_reflect xpath xpath_boolean xpath_double xpath_float xpath_int
    xpath_long xpath_number xpath_short xpath_string
    """: _REACHES_OUT,
    "current_user session_user user": _SESSION,
    """
    collations current_catalog current_database current_path current_schema current_timezone
    input_file_block_length input_file_block_start input_file_name sql_keywords version
    """: _ENVIRONMENT,
    """
    aes_encrypt monotonically_increasing_id rand randn random randstr shuffle
    spark_partition_id uniform uuid
    """: _RANDOM,
    """
    approx_percentile histogram_numeric percentile_approx schema_of_variant_agg vector_avg
    vector_sum
    """: _ORDER,
    """
    approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate
    count_min_sketch hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg
    kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint
    kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint
    kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint
    kll_sketch_get_quantile_double kll_sketch_get_quantile_float kll_sketch_get_rank_bigint
    kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
    kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
    kll_sketch_to_string_double kll_sketch_to_string_float theta_difference
    theta_intersection theta_intersection_agg theta_sketch_agg theta_sketch_estimate
    theta_union theta_union_agg tuple_difference_double tuple_difference_integer
    tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_agg_double tuple_intersection_agg_integer tuple_intersection_double
    tuple_intersection_integer tuple_intersection_theta_double
    tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer
    tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
    tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer
    tuple_union_agg_double tuple_union_agg_integer tuple_union_double tuple_union_integer
    tuple_union_theta_double tuple_union_theta_integer
    """: _SKETCH,
    """
    make_time measure st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid
    time time_bucket time_diff time_from_micros time_from_millis time_from_seconds
    session_window time_to_micros time_to_millis time_to_seconds time_trunc to_time
    try_to_time variant_explode variant_explode_outer window window_time
    """: _TYPE,
}
#: The functions that no view may call.
REFUSED: Mapping[str, Refusal] = {
    name: why for names, why in _REFUSED.items() for name in names.split()
}

#: The functions that a view may call, by the number of their arguments: so many, from-to, or more.
_ARGUMENTS: Mapping[str, str] = {
    "0": """
    cume_dist curdate current_date current_timestamp dense_rank e localtimestamp now
    percent_rank pi rank row_number
    """,
    "even": "map named_struct",
    "0+": "array arrays_zip concat grouping_id map_concat struct",
    "0-1": "current_time ntile",
    "0-2": "make_ym_interval mode unix_timestamp",
    "0-4": "make_dt_interval",
    "0-7": "make_interval",
    "1": """
    abs acos acosh array_agg array_compact array_distinct array_max array_min array_size
    ascii asin asinh atan atanh avg base64 bigint bin binary bit_and bit_count bit_length
    bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number
    bitmap_construct_agg bitmap_count bitmap_or_agg bool_and bool_or boolean cardinality
    cast cbrt char char_length character_length chr collation collect_list collect_set cos
    cosh cot count_if crc32 csc date date_from_unix_date day dayname dayofmonth dayofweek
    dayofyear decimal degrees double every exp explode explode_outer expm1 factorial flatten
    float grouping hex hour initcap inline inline_outer int is_valid_utf8 is_valid_variant
    is_variant_null isnan isnotnull isnull json_array_length json_object_keys kurtosis
    last_day lcase len length ln log10 log1p log2 lower luhn_check make_valid_utf8
    map_entries map_from_entries map_keys map_values max md5 mean median min minute month
    monthname negative not nullifzero octet_length parse_json percentile_cont
    percentile_disc posexplode posexplode_outer positive quarter quote radians raise_error
    reverse rint schema_of_variant sec second sha sha1 sign signum sin sinh size skewness
    smallint some soundex space sqrt std stddev stddev_pop stddev_samp string sum tan tanh
    timestamp timestamp_micros timestamp_millis timestamp_seconds tinyint to_variant_object
    try_avg try_parse_json try_sum try_url_decode try_validate_utf8 typeof ucase unbase64
    unhex unix_date unix_micros unix_millis unix_seconds upper url_decode url_encode
    validate_utf8 var_pop var_samp variance weekday
    weekofyear year zeroifnull
    """,
    "1,2,3,6,7": "make_timestamp try_make_timestamp",
    "1+": "coalesce concat_ws count format_string hash printf xxhash64",
    "1-2": """
    any_value approx_count_distinct array_sort assert_true bround btrim ceil ceiling first
    first_value floor from_unixtime last last_value listagg log ltrim round rtrim
    schema_of_csv schema_of_json sort_array string_agg to_binary to_csv to_date to_json
    to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp trim try_to_binary
    try_to_date try_to_timestamp vector_norm vector_normalize
    """,
    "1-3": "lag lead sentences str_to_map",
    "1-5": "mask",
    "1-7": "try_make_interval",
    "2": """
    add_months and array_append array_contains array_except array_intersect array_position
    array_prepend array_remove array_repeat array_union arrays_overlap atan2 bit_get collate
    contains corr covar_pop covar_samp date_format date_part date_sub date_trunc datepart
    div element_at encode endswith equal_null exists extract filter find_in_set forall
    format_number from_utc_timestamp get get_json_object getbit hypot ifnull instr left
    map_contains_key map_filter map_from_arrays mod nanvl next_day nullif nvl or pmod pow
    power regexp regexp_count regexp_like regexp_substr regr_avgx regr_avgy regr_count
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat right rlike
    sha2 shiftleft shiftright shiftrightunsigned startswith to_char to_number
    to_utc_timestamp to_varchar transform transform_keys transform_values trunc try_add
    try_divide try_element_at try_mod try_multiply try_subtract try_to_number
    vector_cosine_similarity vector_inner_product vector_l2_distance
    """,
    "2,3,6,7": "make_timestamp_ltz try_make_timestamp_ltz",
    "2,6": "make_timestamp_ntz try_make_timestamp_ntz",
    "2+": "decode elt greatest json_tuple least stack ",
    "2-3": """
    array_join convert_timezone date_add date_diff dateadd datediff from_csv from_json ilike
    levenshtein like locate lpad max_by min_by months_between nth_value parse_url percentile
    position regexp_extract regexp_extract_all regexp_instr replace rpad sequence split
    substr substring try_parse_url try_variant_get variant_get
    """,
    "2-5": "aes_decrypt try_aes_decrypt",
    "3": """
    array_insert conv if make_date map_zip_with nvl2 slice split_part
    substring_index timestampadd timestampdiff translate zip_with
    """,
    "3-4": "aggregate overlay reduce regexp_replace",
    "4": "width_bucket",
}


def _counts(text: str) -> frozenset[int]:
    """The numbers that `2`, `1-3`, `0,2`, `3+`, `even` stand for; none beyond 99."""
    if text == "even":
        return frozenset(range(0, 100, 2))
    counts: set[int] = set()
    for part in text.split(","):
        first, _, last = part.rstrip("+").partition("-")
        counts |= set(range(int(first), (99 if part.endswith("+") else int(last or first)) + 1))
    return frozenset(counts)


#: How many arguments a function may have that a view may call.
ARGUMENTS: Mapping[str, frozenset[int]] = {
    name: _counts(count) for count, names in _ARGUMENTS.items() for name in names.split()
}

#: One value for many rows.
AGGREGATES: _Names = frozenset(
    """
    any_value approx_count_distinct array_agg avg bit_and bit_or bit_xor bitmap_and_agg
    bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set corr count
    count_if covar_pop covar_samp every first first_value grouping grouping_id kurtosis last
    last_value listagg max max_by mean median min min_by mode percentile percentile_cont
    percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
    regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg
    sum try_avg try_sum var_pop var_samp variance
    """.split()  # noqa: SIM905
)
#: Many rows for one.
GENERATORS: _Names = frozenset(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack
    """.split()  # noqa: SIM905
)
#: Functions of Spark that are words of SQL to the parser: `CASE WHEN`, `x IN (…)`, `x = ANY (…)`.
WORDS: _Names = frozenset(["any", "between", "in", "when"])
#: What a name may not mean that the user declares.
BUILT_IN: _Names = frozenset(ARGUMENTS) | frozenset(REFUSED) | WORDS
