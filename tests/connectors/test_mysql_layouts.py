"""What a statement makes of a table's columns, in the binary log of MySQL and MariaDB."""

from __future__ import annotations

import pytest
from mview_connectors.changelogs.mysql.layouts import AlteredError, Facts, after, altered_table

COLUMNS = (
    Facts("id", "int(11)", None),
    Facts("Note", "varchar(20)", "utf8mb4"),
    Facts("n", "decimal(10,2)", None),
    Facts("e", "enum('a','b')", "latin1"),
    Facts("spare", "int(11)", None),
    Facts("odd", "text", "sjis"),
)
READ = {"id", "Note", "n", "e"}


def names(sql):
    return [facts.name for facts in after(sql, COLUMNS, READ.__contains__)]


@pytest.mark.parametrize(
    ("clauses", "there"),
    [
        ("ADD x int", "id Note n e spare odd x"),
        ("ADD COLUMN IF NOT EXISTS x int FIRST", "x id Note n e spare odd"),
        ("ADD IF NOT EXISTS spare int FIRST", "id Note n e spare odd"),
        ("ADD (x int, `y` decimal(3,1), KEY (x))", "id Note n e spare odd x y"),
        ("ADD x varchar(3) DEFAULT 'a,b' AFTER id, ADD y int AFTER x", "id x y Note n e spare odd"),
        ("ADD x int COMMENT 'it -- x', DROP spare", "id Note n e odd x"),
        ("ADD x int COMMENT '/*', DROP spare /* , DROP n */", "id Note n e odd x"),
        ("ADD x int /*!40000 , DROP spare */", "id Note n e odd x"),
        ("ADD x int # , DROP n\n, DROP spare", "id Note n e odd x"),
        ('DROP "spare"', "id Note n e odd"),
        ("DROP COLUMN IF EXISTS nobody, DROP `odd` CASCADE", "id Note n e spare"),
        ("RENAME COLUMN spare TO rest, RENAME INDEX a TO b", "id Note n e rest odd"),
        ("CHANGE spare rest bigint AFTER id", "id rest Note n e odd"),
        ("MODIFY spare json FIRST, MODIFY odd int AFTER spare", "spare odd id Note n e"),
        ("MODIFY n DECIMAL(10, 2) NOT NULL DEFAULT 5 FIRST", "n id Note e spare odd"),
        ("CHANGE COLUMN id id INTEGER AUTO_INCREMENT", "id Note n e spare odd"),
        ("MODIFY e enum('b','a','c') AFTER id", "id e Note n spare odd"),
        ("ADD INDEX (n), DROP KEY a, DROP PRIMARY KEY, ADD CONSTRAINT c CHECK (n > 1)", None),
        ("ADD UNIQUE u (n), DROP FOREIGN KEY f, DROP CONSTRAINT IF EXISTS c", None),
        ("ALTER spare SET DEFAULT 5, ALTER COLUMN n DROP DEFAULT", None),
        ("ENGINE=InnoDB, COMMENT 'DROP n', ROW_FORMAT = DYNAMIC, ALGORITHM=INPLACE, FORCE", None),
        ("DEFAULT CHARACTER SET latin1, ADD PARTITION (PARTITION p VALUES IN (1))", None),
        ("RENAME TO other", None),  # which is told as what moves its rows
    ],
)
def test_what_is_known(clauses, there):
    for head in ("ALTER TABLE t ", "/* a */ alter online table `x`.`t` wait 5 "):
        assert names(head + clauses) == (there or "id Note n e spare odd").split()


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
        ("ADD x varchar(9) DEFAULT 'a", "not understood"),
    ],
)
def test_what_is_not(clauses, why):
    with pytest.raises(AlteredError, match=why):
        names(f"ALTER TABLE t {clauses}")


def test_labels_of_an_enum_are_the_new_ones():
    sql = "ALTER TABLE t MODIFY e enum('a','it''s',\"b\")"
    (column,) = (facts for facts in after(sql, COLUMNS, {"e"}.__contains__) if facts.name == "e")
    assert column == Facts("e", "enum('a','it''s','b')", "latin1")


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("ALTER TABLE t ADD x int", (None, "t")),
        ("alter ignore table if exists `a`.`b c` drop x", ("a", "b c")),
        ("-- x\n/*!50000 ALTER */ TABLE a.b FORCE", ("a", "b")),
        ("ALTER TABLE u ADD FOREIGN KEY (a) REFERENCES t (id)", (None, "u")),
        ("CREATE INDEX i ON t (x)", None),
        ("ALTER VIEW t AS SELECT 1", None),
    ],
)
def test_which_table_is_altered(sql, table):
    assert altered_table(sql) == table
