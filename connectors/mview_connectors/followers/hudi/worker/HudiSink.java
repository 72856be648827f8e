package worker;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.avro.generic.IndexedRecord;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hudi.avro.HoodieAvroReaderContext;
import org.apache.hudi.client.common.HoodieJavaEngineContext;
import org.apache.hudi.common.config.RecordMergeMode;
import org.apache.hudi.common.config.TypedProperties;
import org.apache.hudi.common.engine.EngineType;
import org.apache.hudi.common.model.FileSlice;
import org.apache.hudi.common.model.HoodieCommitMetadata;
import org.apache.hudi.common.model.HoodieTableType;
import org.apache.hudi.common.model.HoodieTimelineTimeZone;
import org.apache.hudi.common.model.HoodieWriteStat;
import org.apache.hudi.common.model.WriteOperationType;
import org.apache.hudi.common.schema.HoodieSchema;
import org.apache.hudi.common.schema.HoodieSchemaUtils;
import org.apache.hudi.common.table.HoodieTableConfig;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.read.HoodieFileGroupReader;
import org.apache.hudi.common.table.timeline.HoodieTimeline;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.collection.ClosableIterator;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;
import org.apache.hudi.table.HoodieJavaTable;

/** One table; `connect` comes first. */
final class HudiSink {
  private static final int BATCH = 8192;

  private final RootAllocator memory;
  private final HadoopStorageConfiguration storage;
  private final HoodieJavaEngineContext context;
  private Path table;
  private Schema columns;
  private List<String> key;
  private int buckets;
  private boolean isAppend;
  private HoodieSchema schema;
  private HoodieWriteConfig config;

  HudiSink(RootAllocator memory) throws IOException {
    this.memory = memory;
    Configuration hadoop = new Configuration(false);
    hadoop.set("fs.defaultFS", "file:///");
    // Lists as all write them today; the older ones have no NULL.
    hadoop.set("parquet.avro.write-old-list-structure", "false");
    // A file of checksums beside each file helps nobody here.
    FileSystem.getLocal(hadoop).setWriteChecksum(false);
    FileSystem.getLocal(hadoop).setVerifyChecksum(false);
    this.storage = new HadoopStorageConfiguration(hadoop);
    this.context = new HoodieJavaEngineContext(storage);
  }

  JsonNode call(String name, JsonNode given, Main.Rows rows) throws IOException {
    switch (name) {
      case "connect":
        return connect(given);
      case "look":
        return look();
      case "make":
        return make(given);
      case "drop":
        return drop();
      case "stage":
        return stage(given, rows);
      case "commit":
        return commit(given);
      case "move":
        return move(given);
      case "holds":
        return Main.JSON.getNodeFactory().booleanNode(holds(given.get("token")));
      case "abort":
        return abort(given);
      case "maintain":
        return maintain(given);
      default:
        throw new IllegalArgumentException("no call " + name);
    }
  }

  // --- the table -------------------------------------------------------------------------------

  /** Name a table, its columns (an Arrow schema in base 64) and its key. */
  private JsonNode connect(JsonNode given) throws IOException {
    table = Path.of(given.get("table").asText());
    byte[] bytes = Base64.getDecoder().decode(given.get("schema").asText());
    columns = Schema.deserializeMessage(ByteBuffer.wrap(bytes));
    key = new ArrayList<>();
    given.get("key").forEach(one -> key.add(one.asText()));
    buckets = given.get("buckets").asInt();
    isAppend = given.get("is_append").asBoolean();
    schema =
        HoodieSchema.fromAvroSchema(
            Columns.record(columns.getFields(), given.get("comment").asText()));
    Properties more = new Properties();
    // Hudi would sleep that long for each time that it takes.
    more.put("hoodie.time.generator.max_expected_clock_skew_ms", "1");
    // A row that cannot be written is an error.
    more.put("hoodie.write.ignore.failed", "false");
    // Hudi's client for Java knows no bucket index; with this one it looks nothing up.
    more.put("hoodie.index.type", "SIMPLE");
    config =
        HoodieWriteConfig.newBuilder()
            .withEngineType(EngineType.JAVA)
            .withPath(table.toString())
            .forTable(table.getFileName().toString())
            .withSchema(schema.toString())
            .withEmbeddedTimelineServerEnabled(false)
            .withMarkersType("DIRECT")
            .withProperties(more)
            .build();
    return null;
  }

  /** The table as it is now; null: there is none. */
  private HoodieTableMetaClient found() {
    if (!Files.exists(table.resolve(".hoodie").resolve("hoodie.properties"))) {
      return null;
    }
    return HoodieTableMetaClient.builder()
        .setConf(storage)
        .setBasePath(table.toString())
        .setLoadActiveTimelineOnLoad(true)
        .setTimeGeneratorConfig(config.getTimeGeneratorConfig())
        .build();
  }

  private HoodieTableMetaClient client() {
    HoodieTableMetaClient client = found();
    if (client == null) {
      throw new MovedError("there is no such table");
    }
    return client;
  }

  /** What the table says of itself; null: there is none. */
  private JsonNode look() throws IOException {
    HoodieTableMetaClient client = found();
    if (client == null) {
      return null;
    }
    Timeline timeline = new Timeline(table, client);
    Timeline.Marked marked = timeline.marked();
    ObjectNode look = Main.JSON.createObjectNode();
    ObjectNode options = look.putObject("options");
    client.getTableConfig().getProps().forEach((name, value) -> options.put(name.toString(), value.toString()));
    look.put("latest", timeline.latest());
    look.put("mark", marked == null ? null : marked.mark());
    look.put("stands", marked != null && marked.stands());
    look.put("carried", marked == null ? null : marked.fill());
    List<String> names = timeline.columns();
    if (names != null && !Set.copyOf(names).equals(names())) {
      names.forEach(look.putArray("altered")::add);
    }
    return look;
  }

  private Set<String> names() {
    return columns.getFields().stream().map(Field::getName).collect(Collectors.toSet());
  }

  /** Make the table; seen whole or not at all. */
  private JsonNode make(JsonNode given) throws IOException {
    Path parent = table.getParent();
    Files.createDirectories(parent);
    Path made = parent.resolve("." + table.getFileName() + "." + UUID.randomUUID());
    try {
      HoodieTableMetaClient.TableBuilder builder =
          HoodieTableMetaClient.newTableBuilder()
              .setTableType(
                  isAppend ? HoodieTableType.COPY_ON_WRITE : HoodieTableType.MERGE_ON_READ)
              .setTableName(table.getFileName().toString())
              .setKeyGeneratorClassProp("org.apache.hudi.keygen.NonpartitionedKeyGenerator")
              .setRecordMergeMode(RecordMergeMode.COMMIT_TIME_ORDERING)
              .setCommitTimezone(HoodieTimelineTimeZone.UTC)
              .setTableCreateSchema(schema.toString());
      if (!isAppend) {
        builder.setRecordKeyFields(String.join(",", key));
      }
      HoodieTableMetaClient client = builder.initTable(storage, made.toString());
      Properties own = new Properties();
      given.get("options").fields().forEachRemaining(one -> own.put(one.getKey(), one.getValue().asText()));
      HoodieTableConfig.update(client.getStorage(), client.getMetaPath(), own);
      Timeline.alone(table, "lock", true, () -> Files.move(made, table));
    } finally {
      delete(made);
    }
    return null;
  }

  /** Drop the table with all its files. */
  private JsonNode drop() throws IOException {
    Path gone = table.resolveSibling("." + table.getFileName() + "." + UUID.randomUUID());
    Timeline.alone(table, "lock", true, () -> Files.exists(table) ? Files.move(table, gone) : gone);
    delete(gone);
    return null;
  }

  static void delete(Path folder) throws IOException {
    if (Files.exists(folder)) {
      try (Stream<Path> all = Files.walk(folder)) {
        for (Path one : all.sorted(Comparator.reverseOrder()).collect(Collectors.toList())) {
          Files.deleteIfExists(one);
        }
      }
    }
  }

  // --- steps -----------------------------------------------------------------------------------

  /** Write the files of a step, for `commit`. */
  private JsonNode stage(JsonNode given, Main.Rows rows) throws IOException {
    HoodieTableMetaClient client = client();
    Timeline timeline = new Timeline(table, client);
    boolean isFill = given.get("is_fill").asBoolean();
    String base = given.get("base").isNull() ? null : given.get("base").asText();
    String time = timeline.take();
    String fill = isFill ? time : given.get("carried").asText();
    StepWriter writer =
        new StepWriter(
            config, context, HoodieJavaTable.create(config, context, client), time, fill,
            isAppend ? null : key, buckets, isFill);
    ObjectNode token = Main.JSON.createObjectNode();
    try {
      while (rows.next()) {
        writer.add(rows.reader.getVectorSchemaRoot());
      }
      List<HoodieWriteStat> written = writer.finish();
      // Who slept meanwhile must leave nothing: what is older than its timeline, Hudi takes for
      // committed.
      if (!Objects.equals(new Timeline(table, client()).latest(), base)) {
        throw new MovedError("rows have changed while the step was staged");
      }
      List<String> replaced = null;
      if (isFill) {
        replaced =
            client.getActiveTimeline().empty() ? List.of()
            : slices(client).map(FileSlice::getFileId).distinct().collect(Collectors.toList());
      }
      token.put("base", base);
      token.put("time", time);
      token.put("action", isFill ? HoodieTimeline.REPLACE_COMMIT_ACTION : action());
      token.put(
          "content",
          Base64.getEncoder()
              .encodeToString(
                  timeline.content(
                      isFill ? WriteOperationType.INSERT_OVERWRITE_TABLE : operation(),
                      written,
                      replaced,
                      extra(given.get("mark").asText(), fill))));
      ArrayNode files = token.putArray("files");
      written.forEach(one -> files.add(one.getPath()));
      return token;
    } catch (Throwable error) {
      writer.abort();
      for (Path file : Upkeep.data(table)) {
        if (Upkeep.time(file).equals(time)) {
          Files.delete(file);
        }
      }
      delete(Timeline.markers(table, time));
      throw error;
    }
  }

  private String action() {
    return isAppend ? HoodieTimeline.COMMIT_ACTION : HoodieTimeline.DELTA_COMMIT_ACTION;
  }

  private WriteOperationType operation() {
    return isAppend ? WriteOperationType.INSERT : WriteOperationType.UPSERT;
  }

  private Map<String, String> extra(String mark, String fill) {
    Map<String, String> extra = new TreeMap<>();
    extra.put(Timeline.MARK, mark);
    extra.put(Timeline.FILL, fill);
    extra.put(HoodieCommitMetadata.SCHEMA_KEY, schema.toString());
    return extra;
  }

  /** Complete the instant of what was staged. */
  private JsonNode commit(JsonNode given) throws IOException {
    JsonNode token = given.get("token");
    String time = token.get("time").asText();
    byte[] content = Base64.getDecoder().decode(token.get("content").asText());
    complete(token.get("base"), time, token.get("action").asText(), content);
    delete(Timeline.markers(table, time));
    return Main.JSON.getNodeFactory().textNode(time);
  }

  private void complete(JsonNode base, String time, String action, byte[] content) throws IOException {
    Timeline.alone(
        table,
        "lock",
        true,
        () -> {
          new Timeline(table, client()).complete(base.isNull() ? null : base.asText(), time, action, content);
          return true;
        });
  }

  /** Add a commit that changes no row, so that what others have staged is refused. */
  private JsonNode move(JsonNode given) throws IOException {
    Timeline timeline = new Timeline(table, client());
    String time = timeline.take();
    byte[] content =
        timeline.content(
            operation(), List.of(), null, extra(given.get("mark").asText(), given.get("carried").asText("")));
    try {
      complete(given.get("base"), time, action(), content);
    } finally {
      delete(Timeline.markers(table, time));
    }
    return null;
  }

  /** Whether what was staged is there and can be committed. */
  private boolean holds(JsonNode token) throws IOException {
    HoodieTableMetaClient client = found();
    if (client == null) {
      return false;
    }
    String latest = new Timeline(table, client).latest();
    String base = token.get("base").isNull() ? null : token.get("base").asText();
    if (!Objects.equals(latest, base)) {
      return false;
    }
    for (JsonNode file : token.get("files")) {
      if (!Files.exists(table.resolve(file.asText()))) {
        return false;
      }
    }
    return Files.exists(Timeline.markers(table, token.get("time").asText()));
  }

  /** Remove the files of a step that is not committed. */
  private JsonNode abort(JsonNode given) throws IOException {
    return Timeline.alone(
        table,
        "lock",
        true,
        () -> {
          HoodieTableMetaClient client = found();
          if (client == null) {
            return null;
          }
          JsonNode token = given.get("token");
          String time = token.get("time").asText();
          if (client.getActiveTimeline().filterCompletedInstants().containsInstant(time)) {
            throw new MovedError("the step is committed");
          }
          for (JsonNode file : token.get("files")) {
            Files.deleteIfExists(table.resolve(file.asText()));
          }
          delete(Timeline.markers(table, time));
          return null;
        });
  }

  /** Compact, clean, archive; counts of what was done. */
  private JsonNode maintain(JsonNode given) throws IOException {
    boolean thorough = given.get("thorough").asBoolean();
    long before = given.get("before").asLong();
    ObjectNode done = Main.JSON.createObjectNode();
    Timeline.alone(
        table,
        "upkeep",
        thorough,
        () -> {
          Timeline.alone(
              table,
              "lock",
              true,
              () -> {
                new Timeline(table, client()).unlist();
                return true;
              });
          Upkeep upkeep = new Upkeep(table, config, context, this::client);
          done.put("files_merged", isAppend ? 0 : upkeep.compact(thorough));
          done.put("files_removed", upkeep.clean(before) + upkeep.sweep());
          done.put("commits_archived", upkeep.archive(before));
          return true;
        });
    return done;
  }

  // --- reading ---------------------------------------------------------------------------------

  /** What readers merge; also what a compaction has still to merge, which is pending. */
  private Stream<FileSlice> slices(HoodieTableMetaClient client) {
    HoodieJavaTable<?> whole = HoodieJavaTable.create(config, context, client);
    String newest = client.getActiveTimeline().lastInstant().get().requestedTime();
    return whole
        .getSliceView()
        .getLatestMergedFileSlicesBeforeOrOn("", newest)
        .collect(Collectors.toList())
        .stream();
  }

  /** All rows, by Hudi's own merge. */
  void read(OutputStream answers) throws IOException {
    HoodieTableMetaClient client = client();
    Option<String> newest =
        client.getActiveTimeline().getCommitsTimeline().filterCompletedInstants().lastInstant().map(one -> one.requestedTime());
    HoodieSchema stored = HoodieSchemaUtils.addMetadataFields(schema, false);
    List<FileSlice> slices = newest.isPresent() ? slices(client).collect(Collectors.toList()) : List.of();
    ObjectNode answer = Main.JSON.createObjectNode();
    answer.put("has_rows", true);
    Main.write(answers, answer);
    try (VectorSchemaRoot root = VectorSchemaRoot.create(columns, memory);
        ArrowStreamWriter out = new ArrowStreamWriter(root, null, unclosed(answers))) {
      out.start();
      int at = 0;
      for (FileSlice slice : slices) {
        HoodieAvroReaderContext reading =
            new HoodieAvroReaderContext(storage, client.getTableConfig(), Option.empty(), Option.empty());
        try (HoodieFileGroupReader<IndexedRecord> reader =
                HoodieFileGroupReader.<IndexedRecord>newBuilder()
                    .withReaderContext(reading)
                    .withHoodieTableMetaClient(client)
                    .withLatestCommitTime(newest.get())
                    .withFileSlice(slice)
                    .withDataSchema(stored)
                    .withRequestedSchema(schema)
                    .withProps(new TypedProperties())
                    .withShouldUseRecordPosition(false)
                    .build();
            ClosableIterator<IndexedRecord> records = reader.getClosableIterator()) {
          while (records.hasNext()) {
            IndexedRecord record = records.next();
            for (int i = 0; i < columns.getFields().size(); i++) {
              Columns.put(root.getVector(i), at, record.get(i));
            }
            if (++at == BATCH) {
              root.setRowCount(at);
              out.writeBatch();
              at = 0;
            }
          }
        }
      }
      root.setRowCount(at);
      out.writeBatch();
      out.end();
    }
  }

  /** Arrow would close what the next answer goes to. */
  private static OutputStream unclosed(OutputStream answers) {
    return new FilterOutputStream(answers) {
      @Override
      public void write(byte[] bytes, int from, int count) throws IOException {
        out.write(bytes, from, count);
      }

      @Override
      public void close() throws IOException {
        flush();
      }
    };
  }
}
