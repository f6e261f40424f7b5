// RabbitMQ's Java client with partitioned queues, consumer groups and the layout of super streams, at
// the broker named by INTEROP_BROKER_URL. Run by test_partitions.py, with the parts as arguments.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class Partitions {
    static final int PATIENCE_MS = 30_000;
    static final int QUIET_MS = 500;
    static final int PARTITIONS = 4;
    static final int KEYS = 20;
    static final int MESSAGES = 100;
    static final Map<String, Object> FROM_FIRST =
            Map.of("x-consumer-group", "g", "x-stream-offset", "first");

    final Connection connection;

    public static void main(String[] parts) {
        try {
            Partitions program = new Partitions();
            for (String part : parts) {
                program.hold(part);
                System.out.println(part);
            }
            program.connection.close();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's own threads would keep the program alive
        }
    }

    Partitions() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("INTEROP_BROKER_URL"));
        connection = factory.newConnection();
    }

    void hold(String part) throws Exception {
        switch (part) {
            case "compete" -> competes();
            case "commit" -> commits();
            case "take-over" -> takesOver();
            case "assign" -> assigns();
            case "begin" -> begins();
            case "super-stream" -> hasSuperStreams();
            default -> throw new IllegalArgumentException(part);
        }
    }

    /** Plain consumers get each message once, whatever the partition. */
    void competes() throws Exception {
        prepare("java.compete", Map.of("x-queue-type", "quorum", "x-retention", "1h"));
        List<Consumer> consumers = List.of(
                new Consumer(connection, "java.compete", 5, Map.of()),
                new Consumer(connection, "java.compete", 5, Map.of()));
        Set<String> bodies = new HashSet<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (bodies.size() < MESSAGES && System.currentTimeMillis() < deadline) {
            for (Consumer consumer : consumers) {
                GetResponse delivery = consumer.deliveries.poll(10, TimeUnit.MILLISECONDS);
                if (delivery != null) {
                    expect(bodies.add(text(delivery)), text(delivery) + " comes once");
                    consumer.count++;
                    consumer.channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
                }
            }
        }
        expect(bodies.size() == MESSAGES, bodies.size() + " came");
        for (Consumer consumer : consumers) {
            expect(consumer.count > 0, "both get some");
            consumer.channel.close();
        }
    }

    /** What was acknowledged does not come again; what was not does, with the flag. */
    void commits() throws Exception {
        prepare("java.commit", Map.of("x-queue-type", "stream"));
        Consumer one = new Consumer(connection, "java.commit", 1000, FROM_FIRST);
        List<GetResponse> came = one.receive(MESSAGES);
        checkOrder(came);
        Set<String> settled = new HashSet<>();
        for (GetResponse delivery : came) {
            if (number(delivery, "x-offset") < 3) {
                settled.add(text(delivery));
                one.channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            }
        }
        one.channel.close();
        Consumer two = new Consumer(connection, "java.commit", 1000, FROM_FIRST);
        List<GetResponse> again = two.receive(MESSAGES - settled.size());
        checkOrder(again);
        for (GetResponse delivery : again) {
            expect(!settled.contains(text(delivery)), text(delivery) + " is settled");
            expect(delivery.getEnvelope().isRedeliver(), text(delivery) + " is flagged");
        }
        two.channel.basicAck(0, true);
        two.channel.close();
        Consumer three = new Consumer(connection, "java.commit", 1000, FROM_FIRST);
        three.expectQuiet();
        three.channel.close();
    }

    /** A second member waits for partitions that the first holds, and gets all when it leaves. */
    void takesOver() throws Exception {
        prepare("java.takeover", Map.of("x-queue-type", "quorum", "x-retention", "1h"));
        Connection other = new ConnectionFactory() {{
            setUri(System.getenv("INTEROP_BROKER_URL"));
        }}.newConnection();
        Consumer one = new Consumer(other, "java.takeover", 1000, FROM_FIRST);
        expect(one.receive(MESSAGES).size() == MESSAGES, "the first member gets everything");
        Consumer two = new Consumer(connection, "java.takeover", 1000, FROM_FIRST);
        two.expectQuiet();
        other.abort(); // without a word for the channel
        List<GetResponse> came = two.receive(MESSAGES);
        checkOrder(came);
        two.channel.basicAck(0, true);
        two.channel.close();
    }

    void assigns() throws Exception {
        prepare("java.assign", Map.of("x-queue-type", "stream"));
        Map<String, Object> wanted = new HashMap<>(FROM_FIRST);
        wanted.put("x-group-assign", List.of(3, 1));
        Consumer some = new Consumer(connection, "java.assign", 1000, wanted);
        Consumer rest = new Consumer(connection, "java.assign", 1000, FROM_FIRST);
        int count = 0;
        Set<String> bodies = new HashSet<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (bodies.size() < MESSAGES && System.currentTimeMillis() < deadline) {
            for (Consumer member : List.of(some, rest)) {
                GetResponse delivery = member.deliveries.poll(10, TimeUnit.MILLISECONDS);
                if (delivery != null) {
                    long partition = number(delivery, "x-partition");
                    expect(partition % 2 == (member == some ? 1 : 0), "not " + partition);
                    expect(bodies.add(text(delivery)), text(delivery) + " comes once");
                    count++;
                }
            }
        }
        expect(count == MESSAGES, count + " came");
        some.channel.close();
        rest.channel.close();
    }

    void begins() throws Exception {
        prepare("java.begin", Map.of("x-queue-type", "stream"));
        Map<String, Object> place = Map.of("x-consumer-group", "late", "x-stream-offset", 2);
        Consumer late = new Consumer(connection, "java.begin", 1000, place);
        List<GetResponse> came = late.receive(1);
        for (GetResponse next = came.get(0); next != null; next = late.poll(QUIET_MS)) {
            expect(number(next, "x-offset") >= 2, "it begins at offset 2");
        }
        late.channel.close();
        place = Map.of("x-consumer-group", "new");
        Consumer next = new Consumer(connection, "java.begin", 1000, place);
        next.expectQuiet();
        publish("java.begin", 0, "customer-0 later");
        expect(text(next.receive(1).get(0)).equals("customer-0 later"), "what is new comes");
        next.channel.close();
    }

    /** What RabbitMQ's tools declare: a direct exchange, and a stream for each partition. */
    void hasSuperStreams() throws Exception {
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        channel.exchangeDeclare(
                "java.invoices", "direct", true, false, Map.of("x-super-stream", true));
        for (int number = 0; number < 3; number++) {
            String stream = "java.invoices-" + number;
            channel.queueDeclare(stream, true, false, false, Map.of("x-queue-type", "stream"));
            channel.queueBind(stream, "java.invoices", String.valueOf(number),
                    Map.of("x-stream-partition-order", number));
        }
        for (int number = 0; number < 30; number++) {
            channel.basicPublish("java.invoices", String.valueOf(number % 3), true,
                    persistent(Map.of()), String.valueOf(number).getBytes());
        }
        channel.waitForConfirmsOrDie(PATIENCE_MS);
        for (int number = 0; number < 3; number++) {
            Consumer reader = new Consumer(connection, "java.invoices-" + number, 100,
                    Map.of("x-stream-offset", "first"));
            List<GetResponse> came = reader.receive(10);
            for (int place = 0; place < 10; place++) {
                String wanted = String.valueOf(3 * place + number);
                expect(text(came.get(place)).equals(wanted), "not " + text(came.get(place)));
                expect(number(came.get(place), "x-stream-offset") == place, "at its offset");
            }
            reader.channel.close();
        }
        channel.close();
    }

    /** Declares a queue and fills it, a few messages of each key. */
    void prepare(String queue, Map<String, Object> arguments) throws Exception {
        Channel channel = connection.createChannel();
        Map<String, Object> all = new HashMap<>(arguments);
        all.put("x-partitions", PARTITIONS);
        channel.queueDeclare(queue, true, false, false, all);
        channel.close();
        for (int number = 0; number < MESSAGES; number++) {
            int key = number % KEYS;
            publish(queue, key, "customer-" + key + " " + number);
        }
    }

    void publish(String queue, int key, String body) throws Exception {
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        Map<String, Object> headers = Map.of("x-partition-key", "customer-" + key);
        channel.basicPublish("", queue, persistent(headers), body.getBytes());
        channel.waitForConfirmsOrDie(PATIENCE_MS);
        channel.close();
    }

    static AMQP.BasicProperties persistent(Map<String, Object> headers) {
        return new AMQP.BasicProperties.Builder().deliveryMode(2).headers(headers).build();
    }

    /** Each partition comes in the order of its offsets, each key in that of its numbers. */
    static void checkOrder(List<GetResponse> came) {
        Map<Long, Long> offsets = new HashMap<>();
        Map<String, Integer> numbers = new HashMap<>();
        for (GetResponse delivery : came) {
            Long offset = offsets.put(number(delivery, "x-partition"), number(delivery, "x-offset"));
            expect(offset == null || offset < number(delivery, "x-offset"), "offsets ascend");
            String[] words = text(delivery).split(" ");
            Integer last = numbers.put(words[0], Integer.valueOf(words[1]));
            expect(last == null || last < Integer.parseInt(words[1]), "a key keeps its order");
        }
    }

    static long number(GetResponse delivery, String header) {
        Object value = delivery.getProps().getHeaders().get(header);
        expect(value instanceof Number, header + " is a number, not " + value);
        return ((Number) value).longValue();
    }

    static String text(GetResponse delivery) {
        return new String(delivery.getBody());
    }

    static void expect(boolean fact, String what) {
        if (!fact) {
            throw new AssertionError("not so: " + what);
        }
    }

    /** A consumer on a channel of its own. */
    static class Consumer {
        final BlockingQueue<GetResponse> deliveries = new LinkedBlockingQueue<>();
        final Channel channel;
        int count;

        Consumer(Connection connection, String queue, int prefetch, Map<String, Object> arguments)
                throws Exception {
            channel = connection.createChannel();
            channel.basicQos(prefetch);
            channel.basicConsume(queue, false, arguments, new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(
                        String tag, Envelope envelope, AMQP.BasicProperties properties,
                        byte[] body) {
                    deliveries.add(new GetResponse(envelope, properties, body, 0));
                }
            });
        }

        GetResponse poll(int patienceMs) throws InterruptedException {
            return deliveries.poll(patienceMs, TimeUnit.MILLISECONDS);
        }

        List<GetResponse> receive(int wanted) throws InterruptedException {
            List<GetResponse> came = new ArrayList<>();
            while (came.size() < wanted) {
                GetResponse delivery = poll(PATIENCE_MS);
                expect(delivery != null, wanted + " come, not " + came.size());
                came.add(delivery);
            }
            return came;
        }

        void expectQuiet() throws InterruptedException {
            GetResponse delivery = poll(QUIET_MS);
            expect(delivery == null, "nothing comes");
        }
    }
}
