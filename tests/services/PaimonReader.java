import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.fs.Path;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;

/**
 * Reads tables with Paimon's own reader. A request is a line: "rows" or "files", warehouse,
 * database and table, with tabs between. An answer is a line of JSON per row, or the number of
 * files that are read, then a line "end"; or "none", "error …".
 */
public class PaimonReader {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] asked = line.split("\t");
            try {
                Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(new Path(asked[1])));
                Table table = catalog.getTable(Identifier.create(asked[2], asked[3]));
                if (asked[0].equals("files")) {
                    out.println(files(table));
                } else {
                    read(table, out);
                }
                out.println("end");
            } catch (Catalog.TableNotExistException missing) {
                out.println("none");
            } catch (Throwable error) {
                error.printStackTrace();
                out.println("error " + error);
            }
            out.flush();
        }
    }

    static int files(Table table) {
        int count = 0;
        for (Split split : table.newReadBuilder().newScan().plan().splits()) {
            count += ((DataSplit) split).dataFiles().size();
        }
        return count;
    }

    static void read(Table table, PrintStream out) throws Exception {
        List<DataField> fields = table.rowType().getFields();
        ReadBuilder builder = table.newReadBuilder();
        try (BatchTableWrite write = table.newBatchWriteBuilder().newWrite()) {
            for (Split split : builder.newScan().plan().splits()) {
                int bucket = ((DataSplit) split).bucket();
                try (RecordReader<InternalRow> rows = builder.newRead().createReader(split)) {
                    rows.forEachRemaining(row -> {
                        if (write.getBucket(row) != bucket) {
                            throw new IllegalStateException("a row lies in another bucket than its own");
                        }
                        out.println(json(row, fields));
                    });
                }
            }
        }
    }

    static String json(InternalRow row, List<DataField> fields) {
        List<String> values = new ArrayList<>();
        for (int at = 0; at < fields.size(); at++) {
            DataType type = fields.get(at).type();
            values.add(json(InternalRow.createFieldGetter(type, at).getFieldOrNull(row), type));
        }
        return "[" + String.join(",", values) + "]";
    }

    static String json(Object value, DataType type) {
        if (value == null || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof InternalArray) {
            InternalArray array = (InternalArray) value;
            DataType element = ((ArrayType) type).getElementType();
            List<String> values = new ArrayList<>();
            for (int at = 0; at < array.size(); at++) {
                values.add(json(InternalArray.createElementGetter(element).getElementOrNull(array, at), element));
            }
            return "[" + String.join(",", values) + "]";
        }
        String text;
        if (value instanceof Timestamp) {
            text = String.valueOf(((Timestamp) value).toMicros());
        } else if (value instanceof byte[]) {
            StringBuilder hex = new StringBuilder();
            for (byte one : (byte[]) value) {
                hex.append(String.format("%02x", one));
            }
            text = hex.toString();
        } else {
            text = value.toString();
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one < 128 && one >= 32 && one != '"' && one != '\\') {
                quoted.append(one);
            } else {
                quoted.append(String.format("\\u%04x", (int) one));
            }
        }
        return quoted.append('"').toString();
    }
}
