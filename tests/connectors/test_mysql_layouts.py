"""What a statement makes of a table's columns, in the binary log of MySQL and MariaDB."""

from __future__ import annotations

import pytest
from mview_connectors.changelogs.mysql.layouts import AlteredError, Facts, after, altered_table

COLUMNS = (
    Facts("id", "int(11)", None, False, "auto_increment"),
    Facts("Note", "varchar(20)", "utf8mb4", True, ""),
    Facts("n", "decimal(10,2)", None, False, ""),
    Facts("e", "enum('a','b')", "latin1", True, ""),
    Facts("spare", "int(11)", None, True, ""),
    Facts("odd", "text", "sjis", True, ""),
    Facts("m", "int(11)", None, True, ""),
    Facts("at", "timestamp", None, True, ""),
)
READ = {"id", "Note", "n", "e", "m", "at"}
LAST = ["m", "at"]


def names(sql):
    return [facts.name for facts in after(sql, COLUMNS, READ.__contains__, "PRIMARY")]


@pytest.mark.parametrize(
    ("clauses", "there"),
    [
        ("ADD x int AFTER odd", "id Note n e spare odd x"),
        ("ADD COLUMN IF NOT EXISTS x int FIRST", "x id Note n e spare odd"),
        ("ADD IF NOT EXISTS spare int FIRST", "id Note n e spare odd"),
        ("ADD (x int, `y` decimal(3,1) FIRST, KEY (x))", "y id Note n e spare odd m at x"),
        ("ADD x varchar(3) DEFAULT 'a,b' AFTER id, ADD y int AFTER x", "id x y Note n e spare odd"),
        ("ADD x int COMMENT 'it -- x' AFTER odd, DROP spare", "id Note n e odd x"),
        ("ADD x int COMMENT '/*' AFTER odd, DROP spare /* , DROP n */", "id Note n e odd x"),
        ("ADD x int AFTER odd /*!40000 , DROP spare */", "id Note n e odd x"),
        ("ADD x int AFTER odd # , DROP n\n, DROP spare", "id Note n e odd x"),
        ('DROP "spare"', "id Note n e odd"),
        ("DROP COLUMN IF EXISTS nobody, DROP `odd` CASCADE", "id Note n e spare"),
        ("RENAME COLUMN spare TO rest, RENAME INDEX a TO b", "id Note n e rest odd"),
        ("CHANGE spare rest bigint AFTER id", "id rest Note n e odd"),
        ("MODIFY spare json FIRST, MODIFY odd int AFTER spare", "spare odd id Note n e"),
        ("MODIFY n DECIMAL(10, 2) NOT NULL DEFAULT 5 FIRST", "n id Note e spare odd"),
        ("CHANGE COLUMN id id INTEGER AUTO_INCREMENT", "id Note n e spare odd"),
        ("MODIFY e enum('b','a','c') AFTER id", "id e Note n spare odd"),
        ("ADD INDEX (n), DROP KEY a, DROP INDEX IF EXISTS b, ADD CONSTRAINT c CHECK (n > 1)", None),
        ("ADD UNIQUE u (n), DROP FOREIGN KEY f, DROP CONSTRAINT IF EXISTS c", None),
        ("ALTER spare SET DEFAULT 5, ALTER COLUMN n DROP DEFAULT", None),
        ("ENGINE=InnoDB, COMMENT 'DROP n', ROW_FORMAT = DYNAMIC, ALGORITHM=INPLACE, FORCE", None),
        ("DEFAULT CHARACTER SET latin1, ADD PARTITION (PARTITION p VALUES IN (1))", None),
        ("COMMENT 'x' ENGINE MyISAM ROW_FORMAT=DYNAMIC", None),
        ("ADD PRIMARY KEY (id, n), ADD CONSTRAINT f FOREIGN KEY (n) REFERENCES p (id)", None),
        ("ADD x int REFERENCES p (id) ON DELETE RESTRICT ON UPDATE NO ACTION, DROP x", None),
        ("MODIFY at timestamp NULL ON UPDATE CURRENT_TIMESTAMP, MODIFY m integer", None),
        ("MODIFY spare int NOT NULL, MODIFY odd int AS (n * 3)", None),
        ("MODIFY m int UNIQUE KEY", None),  # which may be NULL
        ("RENAME TO other", None),  # which is told as what moves its rows
    ],
)
def test_what_is_known(clauses, there):
    for head in ("ALTER TABLE t ", "/* a */ alter online table `x`.`t` wait 5 "):
        listed = (there or "id Note n e spare odd").split()
        assert names(head + clauses) == listed + [name for name in LAST if name not in listed]


def test_a_name_with_a_blank():
    assert names("ALTER TABLE t ADD `y z` int AFTER id")[:3] == ["id", "y z", "Note"]


@pytest.mark.parametrize(
    ("clauses", "why"),
    [
        ("DROP n", "'n' no more"),
        ("DROP note", "'Note' no more"),
        ("ADD x int COMMENT 'it -- x', DROP n", "'n' no more"),
        ("ADD x int /*!40000 , DROP n */", "'n' no more"),
        ("ADD x int /*M!100000 , DROP n */", "'n' no more"),
        ("RENAME COLUMN n TO m", "renamed to 'm'"),
        ("CHANGE n m decimal(10,2)", "renamed to 'm'"),
        ("MODIFY n decimal(12,2)", "another type"),
        ("MODIFY id bigint", "another type"),
        ("MODIFY id int unsigned", "another type"),
        ("MODIFY Note varchar(20)", "another type"),  # in which character set?
        ("MODIFY e enum('a','c')", "another type"),
        ("MODIFY e enum('a','b') CHARACTER SET utf8mb4", "another type"),
        ("MODIFY e set('a','b')", "another type"),
        ("CONVERT TO CHARACTER SET utf8mb4", "another character set"),
        ("ADD SYSTEM VERSIONING", "not understood"),
        ("DROP SYSTEM VERSIONING", "not understood"),
        ("ADD spare int", "once more"),
        ("DROP nobody", "not known"),
        ("ADD x int AFTER nobody", "not known"),
        ("ADD x int COMMENT 'a\\', DROP n, ADD y int COMMENT '", "not understood"),
        ("ADD x int DEFAULT (", "not understood"),
        ("FROBNICATE n", "not understood"),
        ("MODIFY m int NOT NULL", "'m' NOT NULL, which could be NULL"),
        ("CHANGE m m int PRIMARY KEY", "'m' NOT NULL"),
        ("MODIFY e enum('a','b') NOT NULL", "'e' NOT NULL"),
        ("ADD PRIMARY KEY (id, m)", "'m' NOT NULL"),
        ("MODIFY at timestamp", "'at' NOT NULL"),
        ("MODIFY m int AS (n * 3) STORED", "'m' computed"),
        ("CHANGE COLUMN n n decimal(10,2) GENERATED ALWAYS AS (m) VIRTUAL", "'n' computed"),
        ("MODIFY n decimal(10,2) NOT NULL AUTO_INCREMENT", "numbered"),
        ("CONVERT PARTITION p TO TABLE x", "not understood"),
        ("CONVERT TABLE x TO PARTITION p VALUES LESS THAN (5)", "not understood"),
        ("DROP PARTITION p", "not understood"),
        ("ADD CONSTRAINT f FOREIGN KEY (m) REFERENCES p (id) ON DELETE CASCADE", "foreign key"),
        ("ADD FOREIGN KEY (m) REFERENCES p (id) ON UPDATE SET NULL", "foreign key"),
        ("ADD (x int, y int REFERENCES p (id) ON DELETE SET DEFAULT)", "foreign key"),
        ("ENGINE = BLACKHOLE", "not understood"),
        ("COMMENT 'x' ENGINE='blackhole'", "not understood"),
        ("WITH SYSTEM VERSIONING", "not understood"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)", "no longer the key"),
        ("DROP CONSTRAINT IF EXISTS `primary`", "no longer the key"),
        ("ADD x int, RENAME KEY `PRIMARY` TO k", "no longer the key"),
        ("ADD x varchar(9) DEFAULT 'a", "not understood"),
    ],
)
def test_what_is_not(clauses, why):
    with pytest.raises(AlteredError, match=why):
        names(f"ALTER TABLE t {clauses}")


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER IGNORE TABLE t ADD UNIQUE (n)",
        "DROP INDEX `PRIMARY` ON t",
        "DROP INDEX IF EXISTS `primary` ON x.t",
        "CREATE OR REPLACE UNIQUE INDEX IF NOT EXISTS `Primary` ON t (id, n)",
    ],
)
def test_what_takes_rows_or_the_key(sql):
    assert altered_table(sql)[1] == "t"
    with pytest.raises(AlteredError, match=r"IGNORE|no longer the key"):
        names(sql)


def test_a_key_that_is_declared_has_no_index():
    sql = "ALTER TABLE t DROP PRIMARY KEY, DROP INDEX u"
    assert after(sql, COLUMNS, READ.__contains__) == COLUMNS
    with pytest.raises(AlteredError, match="key"):
        after(sql, COLUMNS, READ.__contains__, "U")


def test_values_may_be_made_of_columns_that_are_not_read():
    computed = (*COLUMNS, Facts("twice", "int(11)", None, True, "STORED GENERATED"))
    read = {*READ, "twice"}
    for clause in ("MODIFY spare bigint", "CHANGE odd odd int"):
        with pytest.raises(AlteredError, match="'twice' may be made of them"):
            after(f"ALTER TABLE t {clause}", computed, read.__contains__)
    of_before = tuple(Facts(*facts[:3]) for facts in COLUMNS)
    with pytest.raises(AlteredError, match="may be made of them"):
        after("ALTER TABLE t MODIFY spare bigint", of_before, read.__contains__)


def test_a_definition_is_that_of_the_next_statement():
    def facts_of(clause, columns):
        layout = after(f"ALTER TABLE t {clause}", columns, READ.__contains__)
        return layout, {facts.name: facts for facts in layout}

    layout, facts = facts_of("MODIFY n decimal(10,2), MODIFY id int", COLUMNS)
    assert facts["n"].nullable
    assert not facts["id"].counts
    for clause in ("MODIFY n decimal(10,2) NOT NULL", "MODIFY id int NOT NULL AUTO_INCREMENT"):
        with pytest.raises(AlteredError):
            facts_of(clause, layout)


def test_labels_of_an_enum_are_the_new_ones():
    sql = "ALTER TABLE t MODIFY e enum('a','it''s',\"b\")"
    (column,) = (facts for facts in after(sql, COLUMNS, {"e"}.__contains__) if facts.name == "e")
    assert column == Facts("e", "enum('a','it''s','b')", "latin1", True, "")


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("ALTER TABLE t ADD x int", (None, "t")),
        ("alter ignore table if exists `a`.`b c` drop x", ("a", "b c")),
        ("-- x\n/*!50000 ALTER */ TABLE a.b FORCE", ("a", "b")),
        ("ALTER TABLE u ADD FOREIGN KEY (a) REFERENCES t (id)", (None, "u")),
        ("CREATE INDEX i ON t (x)", None),
        ("drop index i on a.b lock = none", ("a", "b")),
        ("ALTER VIEW t AS SELECT 1", None),
    ],
)
def test_which_table_is_altered(sql, table):
    assert altered_table(sql) == table
