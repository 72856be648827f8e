package worker;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.DecimalVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.SmallIntVector;
import org.apache.arrow.vector.TimeStampVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.types.DateUnit;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.util.Utf8;

/** Arrow's columns and Avro's fields: their types, values there and back, and texts of keys. */
final class Columns {
  private Columns() {}

  /** The Avro record of columns; all are nullable. */
  static Schema record(List<Field> columns, String comment) {
    List<Schema.Field> fields = new ArrayList<>();
    for (Field column : columns) {
      fields.add(
          new Schema.Field(
              column.getName(), nullable(type(column)), null, Schema.Field.NULL_DEFAULT_VALUE));
    }
    return Schema.createRecord("row", comment.isEmpty() ? null : comment, "mview", false, fields);
  }

  private static Schema nullable(Schema type) {
    return Schema.createUnion(Schema.create(Schema.Type.NULL), type);
  }

  private static Schema type(Field column) {
    ArrowType type = column.getType();
    if (type instanceof ArrowType.Bool) {
      return Schema.create(Schema.Type.BOOLEAN);
    }
    if (type instanceof ArrowType.Int) {
      int bits = ((ArrowType.Int) type).getBitWidth();
      return Schema.create(bits == 64 ? Schema.Type.LONG : Schema.Type.INT);
    }
    if (type instanceof ArrowType.FloatingPoint) {
      boolean single =
          ((ArrowType.FloatingPoint) type).getPrecision() == FloatingPointPrecision.SINGLE;
      return Schema.create(single ? Schema.Type.FLOAT : Schema.Type.DOUBLE);
    }
    if (type instanceof ArrowType.Utf8) {
      return Schema.create(Schema.Type.STRING);
    }
    if (type instanceof ArrowType.Binary) {
      return Schema.create(Schema.Type.BYTES);
    }
    if (type instanceof ArrowType.Date && ((ArrowType.Date) type).getUnit() == DateUnit.DAY) {
      return LogicalTypes.date().addToSchema(Schema.create(Schema.Type.INT));
    }
    if (type instanceof ArrowType.Timestamp
        && ((ArrowType.Timestamp) type).getUnit() == TimeUnit.MICROSECOND) {
      Schema micros = Schema.create(Schema.Type.LONG);
      return ((ArrowType.Timestamp) type).getTimezone() == null
          ? LogicalTypes.localTimestampMicros().addToSchema(micros)
          : LogicalTypes.timestampMicros().addToSchema(micros);
    }
    if (type instanceof ArrowType.Decimal) {
      int precision = ((ArrowType.Decimal) type).getPrecision();
      int bytes = BigInteger.TEN.pow(precision).bitLength() / 8 + 1;
      Schema fixed =
          Schema.createFixed("fixed_" + column.getName(), null, "mview", bytes);
      return LogicalTypes.decimal(precision, ((ArrowType.Decimal) type).getScale()).addToSchema(fixed);
    }
    if (type instanceof ArrowType.List) {
      return Schema.createArray(nullable(type(column.getChildren().get(0))));
    }
    throw new IllegalArgumentException("no type for " + column);
  }

  /** The value of a row, as Avro has it. */
  static Object value(ValueVector vector, int at, Schema schema) {
    if (vector.isNull(at)) {
      return null;
    }
    if (vector instanceof BitVector) {
      return ((BitVector) vector).get(at) == 1;
    }
    if (vector instanceof TinyIntVector) {
      return (int) ((TinyIntVector) vector).get(at);
    }
    if (vector instanceof SmallIntVector) {
      return (int) ((SmallIntVector) vector).get(at);
    }
    if (vector instanceof IntVector) {
      return ((IntVector) vector).get(at);
    }
    if (vector instanceof BigIntVector) {
      return ((BigIntVector) vector).get(at);
    }
    if (vector instanceof Float4Vector) {
      return ((Float4Vector) vector).get(at);
    }
    if (vector instanceof Float8Vector) {
      return ((Float8Vector) vector).get(at);
    }
    if (vector instanceof VarCharVector) {
      return new Utf8(((VarCharVector) vector).get(at));
    }
    if (vector instanceof VarBinaryVector) {
      return ByteBuffer.wrap(((VarBinaryVector) vector).get(at));
    }
    if (vector instanceof DateDayVector) {
      return ((DateDayVector) vector).get(at);
    }
    if (vector instanceof TimeStampVector) {
      return ((TimeStampVector) vector).get(at);
    }
    Schema type = schema.getTypes().get(1);
    if (vector instanceof DecimalVector) {
      byte[] digits = ((DecimalVector) vector).getObject(at).unscaledValue().toByteArray();
      byte[] fixed = new byte[type.getFixedSize()];
      Arrays.fill(fixed, (byte) (digits[0] < 0 ? -1 : 0));
      System.arraycopy(digits, 0, fixed, fixed.length - digits.length, digits.length);
      return new GenericData.Fixed(type, fixed);
    }
    ListVector list = (ListVector) vector;
    List<Object> values = new ArrayList<>();
    for (int i = list.getElementStartIndex(at); i < list.getElementEndIndex(at); i++) {
      values.add(value(list.getDataVector(), i, type.getElementType()));
    }
    return new GenericData.Array<>(type, values);
  }

  /** Put a value of Avro's into a column. */
  static void put(FieldVector vector, int at, Object value) {
    if (value == null) {
      vector.setNull(at);
    } else if (vector instanceof BitVector) {
      ((BitVector) vector).setSafe(at, (Boolean) value ? 1 : 0);
    } else if (vector instanceof TinyIntVector) {
      ((TinyIntVector) vector).setSafe(at, (Integer) value);
    } else if (vector instanceof SmallIntVector) {
      ((SmallIntVector) vector).setSafe(at, (Integer) value);
    } else if (vector instanceof IntVector) {
      ((IntVector) vector).setSafe(at, (Integer) value);
    } else if (vector instanceof BigIntVector) {
      ((BigIntVector) vector).setSafe(at, (Long) value);
    } else if (vector instanceof Float4Vector) {
      ((Float4Vector) vector).setSafe(at, (Float) value);
    } else if (vector instanceof Float8Vector) {
      ((Float8Vector) vector).setSafe(at, (Double) value);
    } else if (vector instanceof VarCharVector) {
      ((VarCharVector) vector).setSafe(at, value.toString().getBytes(StandardCharsets.UTF_8));
    } else if (vector instanceof VarBinaryVector) {
      ((VarBinaryVector) vector).setSafe(at, bytes((ByteBuffer) value));
    } else if (vector instanceof DateDayVector) {
      ((DateDayVector) vector).setSafe(at, (Integer) value);
    } else if (vector instanceof TimeStampVector) {
      ((TimeStampVector) vector).setSafe(at, (Long) value);
    } else if (vector instanceof DecimalVector) {
      byte[] digits =
          value instanceof ByteBuffer ? bytes((ByteBuffer) value) : ((GenericData.Fixed) value).bytes();
      int scale = ((DecimalVector) vector).getScale();
      ((DecimalVector) vector).setSafe(at, new BigDecimal(new BigInteger(digits), scale));
    } else {
      ListVector list = (ListVector) vector;
      List<?> values = (List<?>) value;
      int from = list.startNewValue(at);
      for (int i = 0; i < values.size(); i++) {
        put(list.getDataVector(), from + i, values.get(i));
      }
      list.endValue(at, values.size());
    }
  }

  private static byte[] bytes(ByteBuffer buffer) {
    byte[] bytes = new byte[buffer.remaining()];
    buffer.duplicate().get(bytes);
    return bytes;
  }

  /** A value of a key as Hudi writes it, and as it hashes it to find the bucket. */
  static String text(ValueVector vector, int at) {
    if (vector instanceof DateDayVector) {
      return LocalDate.ofEpochDay(((DateDayVector) vector).get(at)).toString();
    }
    if (vector instanceof TimeStampVector) {
      return Long.toString(((TimeStampVector) vector).get(at));
    }
    return vector.getObject(at).toString();
  }

  /**
   * A text that is no other value's: Hudi has no empty keys. Of a key of several columns also
   * without the characters that Hudi sets between them.
   */
  static String distinct(String text, boolean isPart) {
    String held =
        isPart ? text.replace("%", "%25").replace(",", "%2C").replace(":", "%3A") : text;
    return held.isEmpty() ? EMPTY : held.startsWith(EMPTY) ? held + "_" : held;
  }

  private static final String EMPTY = "__empty__";
}
