package worker;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.hudi.client.WriteStatus;
import org.apache.hudi.client.common.HoodieJavaEngineContext;
import org.apache.hudi.common.model.HoodieAvroIndexedRecord;
import org.apache.hudi.common.model.HoodieEmptyRecord;
import org.apache.hudi.common.model.HoodieKey;
import org.apache.hudi.common.model.HoodieRecord;
import org.apache.hudi.common.model.HoodieWriteStat;
import org.apache.hudi.common.schema.HoodieSchema;
import org.apache.hudi.common.util.SizeEstimator;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.index.bucket.BucketIdentifier;
import org.apache.hudi.io.HoodieAppendHandle;
import org.apache.hudi.io.HoodieCreateHandle;
import org.apache.hudi.io.HoodieWriteHandle;
import org.apache.hudi.table.HoodieJavaTable;

/**
 * Writes the rows of a step into files of their buckets: of changes a log, of a fill a base file.
 *
 * <p>What Hudi's client does before (an index of keys, profiles of the work) is not needed: a
 * bucket has one file group, which is named by the time of the last fill. Rows without a key get
 * files of their own in every step.
 */
final class StepWriter {
  /** The column of kinds in rows that are changes. */
  static final String KIND = "_kind";

  private final HoodieWriteConfig config;
  private final HoodieJavaEngineContext context;
  private final HoodieJavaTable<Object> table;
  private final String time;
  private final String fill;
  /** Null: rows have no key, and are only added. */
  private final List<String> key;
  private final int buckets;
  private final boolean isFill;
  private final HoodieSchema schema;
  private long count;
  private final Map<Integer, HoodieWriteHandle<Object, ?, ?, ?>> handles = new HashMap<>();

  @SuppressWarnings("unchecked")
  StepWriter(
      HoodieWriteConfig config,
      HoodieJavaEngineContext context,
      HoodieJavaTable<?> table,
      String time,
      String fill,
      List<String> key,
      int buckets,
      boolean isFill) {
    this.config = config;
    this.context = context;
    this.table = (HoodieJavaTable<Object>) table;
    this.time = time;
    this.fill = fill;
    this.key = key;
    this.buckets = buckets;
    this.isFill = isFill;
    this.schema = HoodieSchema.parse(config.getSchema());
  }


  /** Take rows: the table's columns, and KIND where they are changes. */
  void add(VectorSchemaRoot rows) {
    Schema record = schema.toAvroSchema();
    List<FieldVector> vectors = new ArrayList<>();
    for (Schema.Field field : record.getFields()) {
      vectors.add(rows.getVector(field.name()));
    }
    List<FieldVector> keys = new ArrayList<>();
    if (key != null) {
      key.forEach(name -> keys.add(rows.getVector(name)));
    }
    VarCharVector kinds = (VarCharVector) rows.getVector(KIND);
    for (int at = 0; at < rows.getRowCount(); at++) {
      String kind = kinds == null ? "+I" : new String(kinds.get(at), StandardCharsets.US_ASCII);
      if (kind.equals("-U")) {
        continue;
      }
      List<String> hashed = new ArrayList<>();
      StringBuilder name = new StringBuilder();
      for (int i = 0; i < keys.size(); i++) {
        String text = Columns.text(keys.get(i), at);
        hashed.add(text);
        if (keys.size() > 1) {
          name.append(i == 0 ? "" : ",").append(key.get(i)).append(':');
        }
        name.append(Columns.distinct(text, keys.size() > 1));
      }
      if (key == null) {
        name.append(time).append('_').append(count++);
      }
      HoodieKey id = new HoodieKey(name.toString(), "");
      HoodieRecord<?> made;
      if (kind.equals("-D")) {
        made = new HoodieEmptyRecord<>(id, HoodieRecord.HoodieRecordType.AVRO);
      } else {
        GenericData.Record row = new GenericData.Record(record);
        for (int i = 0; i < vectors.size(); i++) {
          row.put(i, Columns.value(vectors.get(i), at, record.getFields().get(i).schema()));
        }
        made = new HoodieAvroIndexedRecord(id, row);
      }
      int file = key == null ? part(made) : BucketIdentifier.getBucketId(hashed, buckets);
      handle(file).write(made, schema, config.getProps());
    }
  }

  /** The number of the file that rows without a key go to, of bounded size. */
  private int part(HoodieRecord<?> row) {
    int last = Math.max(0, handles.size() - 1);
    return handles.isEmpty() || handles.get(last).canWrite(row) ? last : last + 1;
  }

  private HoodieWriteHandle<Object, ?, ?, ?> handle(int bucket) {
    return handles.computeIfAbsent(
        bucket,
        number -> {
          String file = fileOf(number);
          return isFill || key == null
              ? new HoodieCreateHandle<>(
                  config, time, table, "", file, context.getTaskContextSupplier())
              : new Log(config, time, table, file, context);
        });
  }

  /** The file group of a bucket. */
  private String fileOf(int bucket) {
    String named = (key == null ? time : fill) + " " + bucket;
    UUID id = UUID.nameUUIDFromBytes(named.getBytes(StandardCharsets.US_ASCII));
    return BucketIdentifier.bucketIdStr(bucket) + id.toString().substring(8) + "-0";
  }

  /** Write what is left; returns what was written. */
  List<HoodieWriteStat> finish() throws IOException {
    List<HoodieWriteStat> written = new ArrayList<>();
    for (HoodieWriteHandle<Object, ?, ?, ?> handle : handles.values()) {
      for (WriteStatus status : handle.close()) {
        if (status.hasErrors()) {
          throw new IOException("rows were not written", status.getGlobalError());
        }
        written.add(status.getStat());
      }
    }
    return written;
  }

  /** A log whose blocks end by the number of rows; Hudi would measure some by reflection. */
  private static final class Log extends HoodieAppendHandle<Object, Object, Object, Object> {
    private static final long ROW_BYTES = 1024;

    @SuppressWarnings({"unchecked", "rawtypes"})
    Log(
        HoodieWriteConfig config,
        String time,
        HoodieJavaTable table,
        String file,
        HoodieJavaEngineContext context) {
      super(config, time, table, "", file, context.getTaskContextSupplier());
    }

    @Override
    protected SizeEstimator<HoodieRecord> getSizeEstimator() {
      return row -> ROW_BYTES;
    }
  }

  /** Let go what is open. */
  void abort() {
    for (HoodieWriteHandle<Object, ?, ?, ?> handle : handles.values()) {
      try {
        handle.close();
      } catch (RuntimeException left) {
        continue;
      }
    }
  }
}
