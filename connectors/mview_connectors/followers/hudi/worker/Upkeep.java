package worker;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hudi.avro.model.HoodieCleanMetadata;
import org.apache.hudi.avro.model.HoodieCompactionOperation;
import org.apache.hudi.client.HoodieJavaWriteClient;
import org.apache.hudi.client.common.HoodieJavaEngineContext;
import org.apache.hudi.common.fs.FSUtils;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.timeline.HoodieInstant;
import org.apache.hudi.common.table.timeline.HoodieTimeline;
import org.apache.hudi.common.util.CompactionUtils;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.config.HoodieWriteConfig;

/**
 * Compaction, cleaning and archiving, by Hudi itself, beside a process that stages and commits.
 *
 * <p>A plan of a compaction says which logs it has, by the times at which they were committed: so
 * nothing may be committed while it is made. All else needs no such thing.
 */
final class Upkeep {
  /** So many commits since the last compaction make one worth while, where it shall be short. */
  private static final int COMMITS = 20;

  /** Instants that stay beyond those whose files do: Hudi wants more, and the mark is in one. */
  private static final int MORE = 10;

  private final Path table;
  private final HoodieWriteConfig base;
  private final HoodieJavaEngineContext context;
  private final Supplier<HoodieTableMetaClient> client;

  Upkeep(
      Path table,
      HoodieWriteConfig base,
      HoodieJavaEngineContext context,
      Supplier<HoodieTableMetaClient> client) {
    this.table = table;
    this.base = base;
    this.context = context;
    this.client = client;
  }

  /** Run Hudi's client with more settings. */
  private interface Work<T> {
    T run(HoodieJavaWriteClient<Object> client) throws IOException;
  }

  private <T> T with(Properties more, Work<T> work) throws IOException {
    more.put("hoodie.clean.automatic", "false");
    more.put("hoodie.archive.automatic", "false");
    Properties all = new Properties();
    all.putAll(base.getProps());
    all.putAll(more);
    HoodieWriteConfig config =
        HoodieWriteConfig.newBuilder().withEngineType(base.getEngineType()).withProperties(all).build();
    try (HoodieJavaWriteClient<Object> hudi = new HoodieJavaWriteClient<>(context, config)) {
      return work.run(hudi);
    }
  }

  /** Merge logs into base files; returns how many logs. */
  int compact(boolean thorough) throws IOException {
    Properties more = new Properties();
    more.put("hoodie.compact.inline.max.delta.commits", thorough ? "1" : String.valueOf(COMMITS));
    return with(
        more,
        hudi -> {
          // What a process has left that died in one.
          int merged = run(hudi);
          Timeline.alone(table, "lock", true, () -> hudi.scheduleCompaction(Option.empty()));
          return merged + run(hudi);
        });
  }

  private int run(HoodieJavaWriteClient<Object> hudi) throws IOException {
    int merged = 0;
    HoodieTableMetaClient now = client.get();
    for (HoodieInstant pending :
        now.getActiveTimeline().filterPendingCompactionTimeline().getInstants()) {
      List<HoodieCompactionOperation> plan =
          CompactionUtils.getCompactionPlan(now, pending.requestedTime()).getOperations();
      merged += plan.stream().mapToInt(each -> each.getDeltaFilePaths().size()).sum();
      hudi.compact(pending.requestedTime(), true);
    }
    return merged;
  }

  /** Files that were replaced before a time go; returns how many. */
  int clean(long before) throws IOException {
    Properties more = new Properties();
    more.put("hoodie.clean.policy", "KEEP_LATEST_COMMITS");
    more.put("hoodie.clean.commits.retained", String.valueOf(since(before)));
    keep(more, before);
    return with(
        more,
        hudi -> {
          HoodieCleanMetadata done = hudi.clean();
          return done == null ? 0 : done.getTotalFilesDeleted();
        });
  }

  /** Instants from before a time go into Hudi's archive; returns how many. */
  int archive(long before) throws IOException {
    Properties more = new Properties();
    more.put("hoodie.clean.commits.retained", String.valueOf(since(before)));
    keep(more, before);
    int then = client.get().getActiveTimeline().countInstants();
    with(
        more,
        hudi -> {
          hudi.archive();
          return null;
        });
    return Math.max(0, then - client.get().getActiveTimeline().countInstants());
  }

  private void keep(Properties more, long before) {
    more.put("hoodie.keep.min.commits", String.valueOf(since(before) + MORE));
    more.put("hoodie.keep.max.commits", String.valueOf(since(before) + MORE + 1));
  }

  /** Commits since a time in milliseconds, at least one. */
  private int since(long before) {
    String time = Timeline.time(before);
    return (int)
        Math.max(
            1,
            client
                .get()
                .getActiveTimeline()
                .getCommitsTimeline()
                .filterCompletedInstants()
                .getInstantsAsStream()
                .filter(each -> each.getCompletionTime().compareTo(time) >= 0)
                .count());
  }

  /**
   * Remove files of steps that were never committed and cannot be any more: they are older than the
   * newest mark. Hudi takes files for committed that are older than its timeline.
   */
  int sweep() throws IOException {
    HoodieTableMetaClient now = client.get();
    Timeline.Marked marked = new Timeline(table, now).marked();
    if (marked == null) {
      return 0;
    }
    HoodieTimeline timeline = now.getActiveTimeline();
    String first = timeline.firstInstant().get().requestedTime();
    String newest = marked.instant().requestedTime();
    Set<String> known =
        timeline.getInstantsAsStream().map(HoodieInstant::requestedTime).collect(Collectors.toSet());
    int removed = 0;
    for (Path file : data(table)) {
      if (isLeft(time(file), first, newest, known)) {
        Files.deleteIfExists(file);
        removed++;
      }
    }
    for (Path folder : list(table.resolve(".hoodie").resolve(".temp"))) {
      if (isLeft(folder.getFileName().toString(), "", newest, known)) {
        HudiSink.delete(folder);
      }
    }
    return removed;
  }

  private static boolean isLeft(String time, String first, String newest, Set<String> known) {
    return time.compareTo(first) >= 0 && time.compareTo(newest) < 0 && !known.contains(time);
  }

  /** The files of rows that lie in a table's folder, whoever refers to them. */
  static List<Path> data(Path table) throws IOException {
    return list(table).stream()
        .filter(file -> file.toString().endsWith(".parquet") || isLog(file))
        .collect(Collectors.toList());
  }

  private static boolean isLog(Path file) {
    return file.getFileName().toString().contains(".log.");
  }

  /** The time that a file of rows has in its name. */
  static String time(Path file) {
    return FSUtils.getCommitTime(file.getFileName().toString());
  }

  private static List<Path> list(Path folder) throws IOException {
    if (!Files.isDirectory(folder)) {
      return List.of();
    }
    try (Stream<Path> all = Files.list(folder)) {
      return all.collect(Collectors.toList());
    }
  }
}
