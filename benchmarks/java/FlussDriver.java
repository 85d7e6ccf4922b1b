import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.lookup.LookupResult;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DataTypes;

/**
 * Fluss's Java client, told by lines of its input what to do: words between tabs. Each answer is a line: "ok" and the
 * seconds it took, or "error" and its text. What is measured begins with rows that are objects in memory.
 */
public final class FlussDriver {
    private static final int PRECISION = 15;
    private static final int SCALE = 2;

    private final String address;
    private final Connection prompt;
    private final Connection patient;
    private final Map<String, Table> tables = new HashMap<>();
    private final Map<String, AppendWriter> writers = new HashMap<>();
    private final Map<String, List<GenericRow>> rows = new HashMap<>();
    private final Random random = new Random(0);

    private FlussDriver(String address) {
        this.address = address;
        prompt = connection(true);
        patient = connection(false);
    }

    /** A prompt one lets no batch wait to be filled, which is best for writers that wait; else by the defaults. */
    private Connection connection(boolean isPrompt) {
        Configuration configuration = new Configuration();
        configuration.setString("bootstrap.servers", address);
        if (isPrompt) {
            configuration.setString("client.writer.batch-timeout", "0ms");
            configuration.setString("client.lookup.batch-timeout", "1ms"); // with 0 its lookups got no answer
        }
        return ConnectionFactory.createConnection(configuration);
    }

    private static Table table(Connection connection, String name) {
        return connection.getTable(TablePath.of("fluss", name));
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        FlussDriver driver = new FlussDriver(arguments[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                answers.println("ok\t" + driver.run(line.split("\t")));
            } catch (Exception e) {
                e.printStackTrace();
                answers.println("error\t" + e.toString().replace('\n', ' '));
            }
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private double run(String[] words) throws Exception {
        switch (words[0]) {
            case "create":
                return create(words[1], words[2], words[3]);
            case "load":
                return load(words[1], words[2], words[3]);
            case "append":
                return append(writers.get(words[1]), batch(words[2], Integer.parseInt(words[3])));
            case "append-by":
                return appendBy(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]),
                        Boolean.parseBoolean(words[5]));
            case "bulk":
                return bulk(words[1], words[2], Integer.parseInt(words[3]));
            case "read":
                return read(words[1], words[2], Long.parseLong(words[3]));
            case "upsert":
                return upsert(words[1], words[2]);
            case "lookup":
                return lookup(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]));
            case "first":
                return first(words[1]);
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** A table of one bucket; columns are "name TYPE" between semicolons; key "-" is none. */
    private double create(String name, String key, String columns) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        for (String column : columns.split(";")) {
            String[] parts = column.split(" ");
            schema.column(parts[0], type(parts[1]));
        }
        TableDescriptor.Builder table = TableDescriptor.builder();
        table.schema((key.equals("-") ? schema : schema.primaryKey(key)).build());
        table = key.equals("-") ? table.distributedBy(1) : table.distributedBy(1, key);
        TablePath path = TablePath.of("fluss", name);
        prompt.getAdmin().createTable(path, table.build(), false).get();
        tables.put(name, table(prompt, name));
        if (key.equals("-")) {
            writers.put(name, tables.get(name).newAppend().createWriter());
        }
        return 0;
    }

    private static DataType type(String name) {
        switch (name) {
            case "BIGINT":
                return DataTypes.BIGINT();
            case "INT":
                return DataTypes.INT();
            case "DATE":
                return DataTypes.DATE();
            case "DECIMAL":
                return DataTypes.DECIMAL(PRECISION, SCALE);
            default:
                return DataTypes.STRING();
        }
    }

    /** Keeps the rows of a file with tabs, whose dates are days and whose decimals are unscaled, as objects. */
    private double load(String name, String file, String columns) throws IOException {
        String[] types = Arrays.stream(columns.split(";")).map(c -> c.split(" ")[1]).toArray(String[]::new);
        List<GenericRow> loaded = new ArrayList<>();
        try (BufferedReader lines = Files.newBufferedReader(Path.of(file))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] texts = line.split("\t", -1);
                GenericRow row = new GenericRow(types.length);
                for (int i = 0; i < types.length; i++) {
                    row.setField(i, value(types[i], texts[i]));
                }
                loaded.add(row);
            }
        }
        rows.put(name, loaded);
        return 0;
    }

    private static Object value(String type, String text) {
        switch (type) {
            case "BIGINT":
                return Long.parseLong(text);
            case "INT":
            case "DATE":
                return Integer.parseInt(text);
            case "DECIMAL":
                return Decimal.fromUnscaledLong(Long.parseLong(text), PRECISION, SCALE);
            default:
                return BinaryString.fromString(text);
        }
    }

    private List<GenericRow> batch(String name, int number) {
        int from = number * 1000 % (rows.get(name).size() - 999);
        return rows.get(name).subList(from, from + 1000);
    }

    private static double append(AppendWriter writer, List<GenericRow> batch) {
        long began = System.nanoTime();
        for (GenericRow row : batch) {
            writer.append(row);
        }
        writer.flush();
        return since(began);
    }

    /** Each writer has a connection, and so batches, of its own. One that does not wait flushes at its end alone. */
    private double appendBy(String table, String name, int writerCount, int batches, boolean waits) throws Exception {
        List<Connection> connections = new ArrayList<>();
        List<Callable<Object>> works = new ArrayList<>();
        for (int number = 0; number < writerCount; number++) {
            Connection own = connection(waits);
            connections.add(own);
            AppendWriter writer = table(own, table).newAppend().createWriter();
            append(writer, batch(name, number));
            int first = number * batches;
            works.add(() -> {
                for (int i = 0; i < batches; i++) {
                    for (GenericRow row : batch(name, first + i)) {
                        writer.append(row);
                    }
                    if (waits) {
                        writer.flush();
                    }
                }
                writer.flush();
                return null;
            });
        }
        ExecutorService pool = Executors.newFixedThreadPool(writerCount);
        long began = System.nanoTime();
        for (Future<Object> done : pool.invokeAll(works)) {
            done.get();
        }
        double seconds = since(began);
        pool.shutdown();
        for (Connection own : connections) {
            own.close();
        }
        return seconds;
    }

    private double bulk(String table, String name, int times) {
        AppendWriter writer = table(patient, table).newAppend().createWriter();
        long began = System.nanoTime();
        for (int i = 0; i < times; i++) {
            for (GenericRow row : rows.get(name)) {
                writer.append(row);
            }
        }
        writer.flush();
        return since(began);
    }

    /** Reads as many rows from the beginning, and looks at the first and the last of the columns of each. */
    private double read(String table, String columns, long count) throws Exception {
        long began = System.nanoTime();
        Scan scan = tables.get(table).newScan();
        if (!columns.equals("-")) {
            scan = scan.project(Arrays.asList(columns.split(";")));
        }
        long left = count;
        long sum = 0;
        LogScanner scanner = scan.createLogScanner();
        scanner.subscribeFromBeginning(0);
        while (left > 0) {
            for (ScanRecord record : scanner.poll(Duration.ofSeconds(1))) {
                InternalRow row = record.getRow();
                sum += row.getLong(0);
                sum += columns.equals("-")
                        ? row.getString(row.getFieldCount() - 1).getSizeInBytes()
                        : row.getDecimal(1, PRECISION, SCALE).toUnscaledLong();
                left--;
            }
        }
        double seconds = since(began);
        scanner.close();
        if (sum == 0 || left != 0) {
            throw new IllegalStateException(left + " rows left, sum " + sum);
        }
        return seconds;
    }

    private double upsert(String table, String name) {
        UpsertWriter writer = table(patient, table).newUpsert().createWriter();
        long began = System.nanoTime();
        for (GenericRow row : rows.get(name)) {
            writer.upsert(row);
        }
        writer.flush();
        return since(began);
    }

    /** Random keys of the loaded rows, as many at a time; each must be found. */
    private double lookup(String table, String name, int count, int atATime) throws Exception {
        Lookuper lookuper = tables.get(table).newLookup().createLookuper();
        List<GenericRow> known = rows.get(name);
        List<GenericRow> keys = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            GenericRow key = new GenericRow(1);
            key.setField(0, known.get(random.nextInt(known.size())).getField(0));
            keys.add(key);
        }
        lookuper.lookup(keys.get(0)).get();
        long began = System.nanoTime();
        for (int from = 0; from < count; from += atATime) {
            List<CompletableFuture<LookupResult>> asked = new ArrayList<>();
            for (GenericRow key : keys.subList(from, Math.min(count, from + atATime))) {
                asked.add(lookuper.lookup(key));
            }
            for (CompletableFuture<LookupResult> answer : asked) {
                if (answer.get().getSingletonRow() == null) {
                    throw new IllegalStateException("a key was not found");
                }
            }
        }
        return since(began);
    }

    /** A table, a row, and the row read, as soon as the servers let it. */
    private double first(String table) throws Exception {
        long began = System.nanoTime();
        while (true) {
            try {
                create(table, "-", "id BIGINT;name STRING");
                break;
            } catch (Exception e) {
                if (since(began) > 60) {
                    throw e;
                }
                Thread.sleep(50);
            }
        }
        GenericRow row = new GenericRow(2);
        row.setField(0, 1L);
        row.setField(1, BinaryString.fromString("x"));
        append(writers.get(table), List.of(row));
        read(table, "-", 1);
        return since(began);
    }

    private static double since(long began) {
        return (System.nanoTime() - began) / 1e9;
    }
}
