import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.ZoneOffset;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalMap;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.data.variant.GenericVariant;
import org.apache.paimon.data.variant.Variant;
import org.apache.paimon.data.variant.VariantCastArgs;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.MapType;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.CloseableIterator;
import org.apache.paimon.utils.TypeUtils;

/**
 * Paimon's own Java library at work on a table, knowing nothing of us: a line of standard input asks, lines of JSON
 * answer, and a line without any ends the answer. Fields of a line have tabs between them.
 */
public final class PaimonProbe {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] asked = line.split("\t", -1);
            try {
                answer(asked, output);
            } catch (Exception error) {
                error.printStackTrace();
                output.println(text("failed: " + error));
            }
            output.println();
        }
    }

    private static void answer(String[] asked, PrintStream output) throws Exception {
        Options options = new Options();
        options.set("warehouse", asked[1]);
        try (Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options))) {
            Identifier name = Identifier.fromString(asked[2]);
            if (asked[0].equals("make")) {
                make(catalog, name, asked);
                return;
            }
            Table table = catalog.getTable(name);
            switch (asked[0]) {
                case "read" -> read(table, asked, output);
                case "expire" -> output.println(expire(table, Integer.parseInt(asked[3])));
                case "clean" -> output.println(clean(table));
                case "append" -> append(table, Long.parseLong(asked[3]), asked[4]);
                case "write" -> write(table, asked);
                case "type" -> output.println(text(table.rowType().asSQLString()));
                case "variants" -> variants(table, asked);
                case "get" -> get(table, Long.parseLong(asked[3]), asked[4], output);
                default -> throw new IllegalArgumentException(asked[0]);
            }
        }
    }

    /** Options as key=value, then a column and its value as text, or the column alone for its nulls. */
    private static void read(Table table, String[] asked, PrintStream output) throws Exception {
        Map<String, String> dynamic = new HashMap<>();
        if (!asked[3].isEmpty()) {
            dynamic.put(asked[3].split("=")[0], asked[3].split("=")[1]);
        }
        Table copy = table.copy(dynamic);
        RowType type = copy.rowType();
        ReadBuilder builder = copy.newReadBuilder();
        if (asked.length > 4) {
            PredicateBuilder predicates = new PredicateBuilder(type);
            int place = predicates.indexOf(asked[4]);
            builder.withFilter(
                    asked.length == 5
                            ? predicates.isNull(place)
                            : predicates.equal(place, TypeUtils.castFromString(asked[5], type.getTypeAt(place))));
        }
        try (RecordReader<InternalRow> reader =
                        builder.newRead().executeFilter().createReader(builder.newScan().plan());
                CloseableIterator<InternalRow> rows = reader.toCloseableIterator()) {
            while (rows.hasNext()) {
                output.println(row(rows.next(), type));
            }
        }
    }

    private static int expire(Table table, int retained) {
        ExpireConfig config =
                ExpireConfig.builder()
                        .snapshotRetainMin(retained)
                        .snapshotRetainMax(retained)
                        .snapshotTimeRetain(Duration.ZERO)
                        .build();
        return table.newExpireSnapshots().config(config).expire();
    }

    /** Takes every file that is old by a second for an orphan, if nothing names it. */
    private static long clean(Table table) throws Exception {
        long olderThan = System.currentTimeMillis() - 1000;
        return new LocalOrphanFilesClean((FileStoreTable) table, olderThan).clean().getDeletedFileCount();
    }

    private static void append(Table table, long id, String name) throws Exception {
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        try (BatchTableWrite write = builder.newWrite();
                BatchTableCommit commit = builder.newCommit()) {
            write.write(GenericRow.of(id, BinaryString.fromString(name)));
            commit.commit(write.prepareCommit());
        }
    }

    /** Columns of the key, partition columns, and options as key=value, each with commas between them. */
    private static void make(Catalog catalog, Identifier name, String[] asked) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        schema.column("id", DataTypes.BIGINT().notNull()).column("name", DataTypes.STRING());
        schema.column("day", DataTypes.DATE().notNull());
        schema.primaryKey(words(asked[3])).partitionKeys(words(asked[4]));
        for (String option : words(asked[5])) {
            schema.option(option.split("=")[0], option.split("=")[1]);
        }
        catalog.createDatabase(name.getDatabaseName(), true);
        catalog.createTable(name, schema.build(), false);
    }

    private static List<String> words(String text) {
        return text.isEmpty() ? List.of() : List.of(text.split(","));
    }

    /** A kind (+I or -D), a name and a day for all, then ids, with commas between them; "compact" merges what is there. */
    private static void write(Table table, String[] asked) throws Exception {
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        Path folder = Files.createTempDirectory("paimon");
        try (IOManager files = IOManager.create(folder.toString());
                BatchTableWrite write = builder.newWrite();
                BatchTableCommit commit = builder.newCommit()) {
            write.withIOManager(files);
            RowKind kind = RowKind.fromShortString(asked[3]);
            for (String id : words(asked[6])) {
                BinaryString name = BinaryString.fromString(asked[4]);
                GenericRow row = GenericRow.ofKind(kind, Long.parseLong(id), name, Integer.parseInt(asked[5]));
                write.write(row);
                if (asked.length > 7) {
                    write.compact(write.getPartition(row), write.getBucket(row), true);
                }
            }
            commit.commit(write.prepareCommit());
        }
    }

    /** Writes a row of an id and a variant for each two words: the id, and JSON. */
    private static void variants(Table table, String[] asked) throws Exception {
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        Path folder = Files.createTempDirectory("paimon");
        try (IOManager files = IOManager.create(folder.toString());
                BatchTableWrite write = builder.newWrite();
                BatchTableCommit commit = builder.newCommit()) {
            write.withIOManager(files);
            for (int i = 3; i < asked.length; i += 2) {
                write.write(GenericRow.of(Long.parseLong(asked[i]), GenericVariant.fromJson(asked[i + 1])));
            }
            commit.commit(write.prepareCommit());
        }
    }

    /** The text at a path of a row's variant. The library fails where the path leads through what is not there. */
    private static void get(Table table, long id, String path, PrintStream output) throws Exception {
        VariantCastArgs how = new VariantCastArgs(true, ZoneOffset.UTC);
        ReadBuilder builder = table.newReadBuilder();
        try (RecordReader<InternalRow> reader = builder.newRead().createReader(builder.newScan().plan());
                CloseableIterator<InternalRow> rows = reader.toCloseableIterator()) {
            while (rows.hasNext()) {
                InternalRow row = rows.next();
                if (row.getLong(0) == id) {
                    output.println(text(row.getVariant(1).variantGet(path, DataTypes.STRING(), how).toString()));
                }
            }
        }
    }

    private static String row(InternalRow row, RowType type) {
        StringJoiner joined = new StringJoiner(",", "[", "]");
        List<DataField> fields = type.getFields();
        for (int i = 0; i < fields.size(); i++) {
            DataType field = fields.get(i).type();
            joined.add(value(InternalRow.createFieldGetter(field, i).getFieldOrNull(row), field));
        }
        return joined.toString();
    }

    private static String array(InternalArray array, DataType element) {
        StringJoiner joined = new StringJoiner(",", "[", "]");
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(element);
        for (int i = 0; i < array.size(); i++) {
            joined.add(value(getter.getElementOrNull(array, i), element));
        }
        return joined.toString();
    }

    private static String value(Object value, DataType type) {
        if (value == null) {
            return "null";
        } else if (value instanceof InternalRow row) {
            return row(row, (RowType) type);
        } else if (value instanceof InternalMap map) {
            MapType of = (MapType) type;
            return "[" + array(map.keyArray(), of.getKeyType()) + "," + array(map.valueArray(), of.getValueType()) + "]";
        } else if (value instanceof InternalArray array) {
            return array(array, ((ArrayType) type).getElementType());
        } else if (value instanceof Timestamp time) {
            return Long.toString(time.toMicros());
        } else if (value instanceof byte[] bytes) {
            return text(java.util.HexFormat.of().formatHex(bytes));
        } else if (value instanceof Variant variant) {
            return text(variant.toJson());
        } else if (value instanceof Decimal || value instanceof BinaryString) {
            return text(value.toString());
        }
        return value.toString();
    }

    private static String text(String value) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : value.toCharArray()) {
            quoted.append(c < ' ' || c == '"' || c == '\\' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        return quoted.append('"').toString();
    }
}
