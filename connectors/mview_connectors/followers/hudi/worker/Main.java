package worker;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;

/**
 * Calls come in by the standard input, answers go out by the standard output; see `workers.py` for
 * their form. The end of the input ends the process.
 */
public final class Main {
  static final ObjectMapper JSON = new ObjectMapper();
  private static final String END = "end";

  public static void main(String[] arguments) throws IOException {
    InputStream calls = new BufferedInputStream(new FileInputStream(FileDescriptor.in), 1 << 16);
    OutputStream answers = new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16);
    // What libraries print must not come between answers.
    System.setOut(new PrintStream(new FileOutputStream(FileDescriptor.err), true));
    Configurator.setRootLevel(Level.OFF);
    try (RootAllocator memory = new RootAllocator()) {
      HudiSink sink = new HudiSink(memory);
      for (String line = line(calls); line != null; line = line(calls)) {
        JsonNode request = JSON.readTree(line);
        Rows rows = request.get("has_rows").asBoolean() ? new Rows(memory, calls) : null;
        answer(sink, request, rows, answers);
        answers.flush();
      }
    }
  }

  private static void answer(HudiSink sink, JsonNode request, Rows rows, OutputStream answers)
      throws IOException {
    ObjectNode answer = JSON.createObjectNode();
    try {
      JsonNode given = request.get("arguments");
      if (request.get("call").asText().equals("read")) {
        // Where it fails amid rows, their stream is closed as if it were whole: an answer follows.
        sink.read(answers);
        answer.putNull("result");
      } else {
        answer.set("result", sink.call(request.get("call").asText(), given, rows));
      }
    } catch (Throwable error) {
      // The rest of the rows is in the way of the next call; a stream that broke ends us there.
      if (rows != null) {
        rows.skip();
      }
      answer = JSON.createObjectNode();
      answer.put("kind", error.getClass().getSimpleName());
      answer.put("error", told(error));
    }
    write(answers, answer);
  }

  static void write(OutputStream answers, JsonNode answer) throws IOException {
    answers.write(JSON.writeValueAsBytes(answer));
    answers.write('\n');
  }

  /** An error with what it came of. */
  private static String told(Throwable error) {
    StringBuilder text = new StringBuilder();
    int deep = 0;
    for (Throwable cause = error; cause != null && deep < 4; cause = cause.getCause(), deep++) {
      String message = String.valueOf(cause.getMessage()).replaceAll("\\s+", " ");
      text.append(deep == 0 ? "" : "; as ").append(cause.getClass().getSimpleName()).append(": ").append(message);
    }
    return text.toString();
  }

  private static String line(InputStream from) throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    for (int read = from.read(); read != '\n'; read = from.read()) {
      if (read < 0) {
        return null;
      }
      line.write(read);
    }
    return line.toString(StandardCharsets.UTF_8);
  }

  /** Rows that come with a call: an Arrow stream, and a line that says that it is whole. */
  static final class Rows {
    final ArrowStreamReader reader;
    private final InputStream from;
    private boolean isRead;

    Rows(RootAllocator memory, InputStream from) {
      this.from = from;
      this.reader = new ArrowStreamReader(from, memory);
    }

    /** Whether there is a next batch, in the reader's root. */
    boolean next() throws IOException {
      if (!isRead && reader.loadNextBatch()) {
        return true;
      }
      if (!isRead) {
        isRead = true;
        reader.close(false);
        if (!END.equals(line(from))) {
          throw new EOFException("the rows are cut off");
        }
      }
      return false;
    }

    void skip() throws IOException {
      while (next()) {
        continue;
      }
    }
  }
}
