package worker;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Date;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.avro.Schema;
import org.apache.hudi.common.model.HoodieCommitMetadata;
import org.apache.hudi.common.model.HoodieReplaceCommitMetadata;
import org.apache.hudi.common.model.HoodieTableType;
import org.apache.hudi.common.model.HoodieWriteStat;
import org.apache.hudi.common.model.WriteOperationType;
import org.apache.hudi.common.table.HoodieTableConfig;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.timeline.HoodieInstant;
import org.apache.hudi.common.table.timeline.HoodieInstantTimeGenerator;
import org.apache.hudi.common.table.timeline.HoodieTimeline;
import org.apache.hudi.common.util.Option;

/**
 * Instants of a table: one is completed only where the rows are still what it was staged on.
 *
 * <p>Hudi's own locks expire, so that a process that was paused may write after all. This one is of
 * the operating system, and goes with the process that has it. It lies beside the table, as tables
 * are dropped and made under it.
 *
 * <p>A step has no instant before its commit: its files are seen by nobody, and nobody has to roll
 * it back. A change of rows that is pending outside the lock is of a process that died in a commit.
 */
final class Timeline {
  /** Extra metadata of a commit: the sink's mark, and the time that files of the last fill have. */
  static final String MARK = "mview.mark", FILL = "mview.fill";

  private static final Set<String> CHANGES =
      Set.of(
          HoodieTimeline.DELTA_COMMIT_ACTION,
          HoodieTimeline.COMMIT_ACTION,
          HoodieTimeline.REPLACE_COMMIT_ACTION);

  private final Path table;
  private final HoodieTableMetaClient client;

  /** The instants as they are now. */
  Timeline(Path table, HoodieTableMetaClient client) {
    this.table = table;
    this.client = client;
  }

  /** What is done while no other process does. */
  interface Work<T> {
    T run() throws IOException;
  }

  /** Do something alone; null: another process has the lock, and this one does not wait. */
  static <T> T alone(Path table, String lock, boolean waits, Work<T> work) throws IOException {
    Path path = table.resolveSibling("." + table.getFileName() + "." + lock);
    Files.createDirectories(path.getParent());
    try (FileChannel file =
            FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
        FileLock held = waits ? file.lock() : file.tryLock()) {
      return held == null ? null : work.run();
    }
  }

  /** The newest commit with a mark, and whether rows have not changed since. */
  record Marked(HoodieInstant instant, String mark, String fill, boolean stands) {}

  /** The newest mark; null: there is none. */
  Marked marked() throws IOException {
    boolean stands = true;
    for (HoodieInstant instant : backwards()) {
      Map<String, String> extra = metadata(instant).getExtraMetadata();
      if (extra.containsKey(MARK)) {
        return new Marked(instant, extra.get(MARK), extra.get(FILL), stands);
      }
      stands = stands && isSameRows(instant);
    }
    return null;
  }

  /** The newest change of rows; its name tells it from others also after a restore. */
  String latest() throws IOException {
    for (HoodieInstant instant : backwards()) {
      if (!isSameRows(instant)) {
        return client.getInstantFileNameGenerator().getFileName(instant);
      }
    }
    return null;
  }

  /** The names of the columns by the newest schema that a commit has; null: none has one. */
  List<String> columns() throws IOException {
    for (HoodieInstant instant : backwards()) {
      String schema = metadata(instant).getExtraMetadata().get(HoodieCommitMetadata.SCHEMA_KEY);
      if (schema != null && !schema.isEmpty()) {
        return new Schema.Parser()
            .parse(schema).getFields().stream()
                .map(Schema.Field::name)
                .filter(name -> !name.startsWith("_hoodie_"))
                .collect(Collectors.toList());
      }
    }
    return null;
  }

  private Iterable<HoodieInstant> backwards() {
    Iterator<HoodieInstant> instants =
        client
            .getActiveTimeline()
            .getCommitsTimeline()
            .filterCompletedInstants()
            .getReverseOrderedInstantsByCompletionTime()
            .iterator();
    return () -> instants;
  }

  private boolean isSameRows(HoodieInstant instant) throws IOException {
    if (instant.getAction().equals(HoodieTimeline.DELTA_COMMIT_ACTION)) {
      return false;
    }
    WriteOperationType kind = metadata(instant).getOperationType();
    // Clustering moves rows to other file groups than those that a step on a key writes to; and
    // where it was planned before a fill, it brings back what that has replaced.
    return kind == WriteOperationType.COMPACT
        || kind == WriteOperationType.CLUSTER
            && client.getTableType() == HoodieTableType.COPY_ON_WRITE
            && instant.requestedTime().compareTo(filled()) > 0;
  }

  /** The time of the last fill, by the newest mark. */
  private String filled() throws IOException {
    for (HoodieInstant instant : backwards()) {
      Map<String, String> extra = metadata(instant).getExtraMetadata();
      if (extra.containsKey(MARK)) {
        return extra.getOrDefault(FILL, "");
      }
    }
    return "";
  }

  private HoodieCommitMetadata metadata(HoodieInstant instant) throws IOException {
    return instant.getAction().equals(HoodieTimeline.REPLACE_COMMIT_ACTION)
        ? client.getActiveTimeline().readReplaceCommitMetadata(instant)
        : client.getActiveTimeline().readCommitMetadata(instant);
  }

  // --- times -----------------------------------------------------------------------------------

  /** A time after all that instants have. */
  String next() {
    String last =
        client
            .getActiveTimeline()
            .getInstantsAsStream()
            .flatMap(one -> Stream.of(one.requestedTime(), one.getCompletionTime()))
            .filter(Objects::nonNull)
            .max(String::compareTo)
            .orElse("");
    String now = time(System.currentTimeMillis());
    return now.compareTo(last) > 0 ? now : after(last);
  }

  /** A time in milliseconds as Hudi writes it. */
  static String time(long millis) {
    return HoodieInstantTimeGenerator.formatDateBasedOnTimeZone(new Date(millis));
  }

  private static String after(String time) {
    return HoodieInstantTimeGenerator.instantTimePlusMillis(time, 1);
  }

  /** Take a time for the files of a step, which no other one has; see `free`. */
  String take() throws IOException {
    String time = next();
    while (true) {
      Files.createDirectories(markers(table, time).getParent());
      try {
        Files.createDirectory(markers(table, time));
        return time;
      } catch (FileAlreadyExistsException taken) {
        time = after(time);
      }
    }
  }

  /** The folder of Hudi's markers of a time, which exists while it is taken. */
  static Path markers(Path table, String time) {
    return table.resolve(".hoodie").resolve(".temp").resolve(time);
  }

  // --- commits ---------------------------------------------------------------------------------

  /** What a completed instant says. */
  byte[] content(
      WriteOperationType kind,
      List<HoodieWriteStat> written,
      List<String> replaced,
      Map<String, String> extra)
      throws IOException {
    HoodieCommitMetadata metadata = new HoodieCommitMetadata();
    if (replaced != null) {
      HoodieReplaceCommitMetadata replace = new HoodieReplaceCommitMetadata();
      replace.setPartitionToReplaceFileIds(new HashMap<>(Map.of("", replaced)));
      metadata = replace;
    }
    metadata.setOperationType(kind);
    for (HoodieWriteStat one : written) {
      metadata.addWriteStat("", one);
    }
    extra.forEach(metadata::addMetadata);
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    client.getCommitMetadataSerDe().getInstantWriter(metadata).get().writeToStream(bytes);
    return bytes.toByteArray();
  }

  /**
   * Complete an instant; to be done alone.
   *
   * @param base `latest`, when it was staged
   */
  void complete(String base, String time, String action, byte[] content) throws IOException {
    if (!Objects.equals(latest(), base)) {
      throw new MovedError("rows have changed since the step was staged");
    }
    unlist();
    clear();
    if (action.equals(HoodieTimeline.REPLACE_COMMIT_ACTION)) {
      client.getActiveTimeline().createRequestedCommitWithReplaceMetadata(time, action);
    } else {
      client.getActiveTimeline().createNewInstant(instant(HoodieInstant.State.REQUESTED, action, time));
    }
    client
        .getActiveTimeline()
        .transitionRequestedToInflight(
            instant(HoodieInstant.State.REQUESTED, action, time), Option.empty());
    String next = next();
    String completed = next.compareTo(time) > 0 ? next : after(time);
    String name =
        client
            .getInstantFileNameGenerator()
            .getFileName(completed, instant(HoodieInstant.State.COMPLETED, action, time));
    Path whole = markers(table, time).resolveSibling(UUID.randomUUID() + ".commit");
    try (FileChannel file =
        FileChannel.open(whole, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
      ByteBuffer bytes = ByteBuffer.wrap(content);
      while (bytes.hasRemaining()) {
        file.write(bytes);
      }
      file.force(true);
    }
    Files.move(
        whole, table.resolve(".hoodie").resolve("timeline").resolve(name),
        StandardCopyOption.ATOMIC_MOVE);
  }

  /**
   * Take away the list of files that another writer has made, Hudi's metadata table; to be done
   * alone, before any file is added or removed.
   *
   * <p>Readers believe the list as long as the table names it, and nobody here keeps it up. Without
   * it they look into the folder.
   */
  void unlist() throws IOException {
    HoodieTableConfig settings = client.getTableConfig();
    if (!settings.getMetadataPartitions().isEmpty()
        || !settings.getMetadataPartitionsInflight().isEmpty()) {
      settings.clearMetadataPartitions(client);
    }
    HudiSink.delete(table.resolve(".hoodie").resolve("metadata"));
  }

  /** Take away what a process has left that died in a commit; to be done alone. */
  private void clear() {
    List<HoodieInstant> pending =
        client
            .getActiveTimeline()
            .filterInflightsAndRequested()
            .getInstantsAsStream()
            .filter(one -> CHANGES.contains(one.getAction()))
            .collect(Collectors.toList());
    for (HoodieInstant one : pending) {
      for (HoodieInstant.State state :
          List.of(HoodieInstant.State.INFLIGHT, HoodieInstant.State.REQUESTED)) {
        client
            .getActiveTimeline()
            .deleteInstantFileIfExists(instant(state, one.getAction(), one.requestedTime()));
      }
    }
  }

  private HoodieInstant instant(HoodieInstant.State state, String action, String time) {
    return client.createNewInstant(state, action, time);
  }
}
