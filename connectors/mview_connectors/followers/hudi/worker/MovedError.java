package worker;

/** The table is not what a step was staged on any more; nothing was written. */
final class MovedError extends RuntimeException {
  MovedError(String message) {
    super(message);
  }
}
