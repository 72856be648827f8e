package worker;

import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.hadoop.conf.Configuration;
import org.apache.hudi.client.HoodieJavaWriteClient;
import org.apache.hudi.client.WriteStatus;
import org.apache.hudi.client.common.HoodieJavaEngineContext;
import org.apache.hudi.common.config.RecordMergeMode;
import org.apache.hudi.common.engine.EngineType;
import org.apache.hudi.common.model.HoodieAvroIndexedRecord;
import org.apache.hudi.common.model.HoodieEmptyRecord;
import org.apache.hudi.common.model.HoodieKey;
import org.apache.hudi.common.model.HoodieRecord;
import org.apache.hudi.common.model.HoodieTableType;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;

/**
 * The plain way of the bench for Hudi: the upsert of its own client for Java, and for all rows its
 * bulk insert. A step is an Arrow stream on the standard input, answered by a line.
 */
public final class HudiPlain {
  private static final String KIND = "kind", KEY = "k";

  public static void main(String[] arguments) throws IOException {
    PrintStream answers = System.out;
    // What libraries print must not come between answers.
    System.setOut(System.err);
    Configurator.setRootLevel(Level.OFF);
    HadoopStorageConfiguration storage = new HadoopStorageConfiguration(new Configuration(false));
    HoodieJavaEngineContext context = new HoodieJavaEngineContext(storage);
    BufferedInputStream calls = new BufferedInputStream(System.in, 1 << 16);
    HoodieJavaWriteClient<Object> client = null;
    try (RootAllocator memory = new RootAllocator()) {
      for (calls.mark(1); calls.read() >= 0; calls.mark(1)) {
        calls.reset();
        boolean isFirst = client == null;
        ArrowStreamReader reader = new ArrowStreamReader(calls, memory);
        VectorSchemaRoot rows = reader.getVectorSchemaRoot();
        Schema row = Columns.record(columns(rows), "");
        if (isFirst) {
          client = client(Path.of(arguments[0]), row, storage, context);
        }
        List<HoodieRecord<Object>> records = new ArrayList<>();
        while (reader.loadNextBatch()) {
          add(rows, row, records);
        }
        reader.close(false);
        String time = client.startCommit();
        List<WriteStatus> written =
            isFirst ? client.bulkInsert(records, time) : client.upsert(records, time);
        if (!client.commit(time, written)) {
          throw new IOException("it was not committed");
        }
        answers.println("done");
      }
    }
  }

  private static List<Field> columns(VectorSchemaRoot rows) {
    return rows.getSchema().getFields().stream().filter(one -> !one.getName().equals(KIND)).toList();
  }

  private static HoodieJavaWriteClient<Object> client(
      Path table, Schema row, HadoopStorageConfiguration storage, HoodieJavaEngineContext context)
      throws IOException {
    HoodieTableMetaClient.newTableBuilder()
        .setTableType(HoodieTableType.MERGE_ON_READ)
        .setTableName("plain")
        .setKeyGeneratorClassProp("org.apache.hudi.keygen.NonpartitionedKeyGenerator")
        .setRecordMergeMode(RecordMergeMode.COMMIT_TIME_ORDERING)
        .setTableCreateSchema(row.toString())
        .setRecordKeyFields(KEY)
        .initTable(storage, table.toString());
    Properties more = new Properties();
    // As in the sink: Hudi would sleep that long for each commit.
    more.put("hoodie.time.generator.max_expected_clock_skew_ms", "1");
    more.put("hoodie.index.type", "SIMPLE");
    more.put("hoodie.metadata.enable", "false");
    more.put("hoodie.clean.automatic", "false");
    more.put("hoodie.archive.automatic", "false");
    HoodieWriteConfig config =
        HoodieWriteConfig.newBuilder()
            .withEngineType(EngineType.JAVA)
            .withPath(table.toString())
            .forTable("plain")
            .withSchema(row.toString())
            .withEmbeddedTimelineServerEnabled(false)
            .withMarkersType("DIRECT")
            .withProperties(more)
            .build();
    return new HoodieJavaWriteClient<>(context, config);
  }

  @SuppressWarnings("unchecked")
  private static void add(VectorSchemaRoot rows, Schema schema, List<HoodieRecord<Object>> into) {
    VarCharVector kinds = (VarCharVector) rows.getVector(KIND);
    for (int at = 0; at < rows.getRowCount(); at++) {
      String kind = new String(kinds.get(at), StandardCharsets.US_ASCII);
      if (kind.equals("-U")) {
        continue;
      }
      HoodieKey key = new HoodieKey(Columns.text(rows.getVector(KEY), at), "");
      HoodieRecord<?> made;
      if (kind.equals("-D")) {
        made = new HoodieEmptyRecord<>(key, HoodieRecord.HoodieRecordType.AVRO);
      } else {
        GenericData.Record row = new GenericData.Record(schema);
        for (Schema.Field field : schema.getFields()) {
          FieldVector vector = rows.getVector(field.name());
          row.put(field.pos(), Columns.value(vector, at, field.schema()));
        }
        made = new HoodieAvroIndexedRecord(key, row);
      }
      into.add((HoodieRecord<Object>) made);
    }
  }
}
