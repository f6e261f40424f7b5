// RabbitMQ's Java client against the broker named by INTEROP_BROKER_URL, with its automatic
// recovery. Run by test_round_trips.py.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Method;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class RoundTrip {
    static final int PATIENCE_MS = 30_000;
    static final int RECOVERY_INTERVAL_MS = 100;
    static final int MESSAGES = 500;
    static final int LARGE_BYTES = 300_000;
    static final String QUEUE = "java.durable";

    final Connection connection;
    final BlockingQueue<String> recoveries = new LinkedBlockingQueue<>();
    final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));

    public static void main(String[] arguments) {
        try {
            new RoundTrip().run();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's own threads would keep the program alive
        }
    }

    RoundTrip() throws Exception {
        connection = connect();
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recovered) {
                recoveries.add("recovered");
            }

            @Override
            public void handleRecoveryStarted(Recoverable recovering) {}
        });
    }

    void run() throws Exception {
        routes();
        confirms();
        settles();
        keepsProperties();
        seesReturns();
        seesErrors();
        seesCancellation();
        survives();
        closes();
    }

    void routes() throws Exception {
        Channel channel = open();
        channel.queueDeclare(QUEUE, true, false, false, null);
        channel.exchangeDeclare("java.topic", "topic", true);
        channel.queueBind(QUEUE, "java.topic", "stock.#");
        publish(channel, "java.topic", "stock.usd", "bound");
        publish(channel, "java.topic", "bond.usd", "not bound");
        expect(channel.queuePurge(QUEUE).getMessageCount() == 1, "one of two messages is routed");
        channel.queueUnbind(QUEUE, "java.topic", "stock.#");
        channel.exchangeDelete("java.topic", true);
        done(channel, "route");
    }

    void confirms() throws Exception {
        Channel channel = open();
        for (int number = 0; number < MESSAGES; number++) {
            send(channel, "", QUEUE, String.valueOf(number));
        }
        channel.waitForConfirmsOrDie(PATIENCE_MS);
        expect(channel.messageCount(QUEUE) == MESSAGES, "every message is there");
        done(channel, "confirm");
    }

    /** Gets rid of what confirms has left, in every way there is. */
    void settles() throws Exception {
        Channel channel = open();
        channel.basicQos(10);
        BlockingQueue<GetResponse> deliveries = consume(channel);
        long[] tags = new long[10];
        for (int number = 0; number < tags.length; number++) {
            GetResponse delivery = receive(deliveries);
            expect(text(delivery).equals(String.valueOf(number)), "the order is kept");
            tags[number] = delivery.getEnvelope().getDeliveryTag();
        }
        channel.basicAck(tags[4], true);
        channel.basicReject(tags[5], false);
        channel.basicNack(tags[9], true, true); // 6 to 9 come again
        int again = 0;
        for (int number = 6; number < MESSAGES; number++) {
            Envelope envelope = receive(deliveries).getEnvelope();
            again += envelope.isRedeliver() ? 1 : 0;
            channel.basicAck(envelope.getDeliveryTag(), false);
        }
        expect(again == 4, "what was given back is marked as redelivered");
        channel.close();
        channel = open();
        expect(channel.messageCount(QUEUE) == 0, "everything is settled");
        done(channel, "settle");
    }

    void keepsProperties() throws Exception {
        Channel channel = open();
        Map<String, Object> headers = new HashMap<>();
        headers.put("number", 5L);
        headers.put("flag", true);
        headers.put("when", new Date(1_700_000_000_000L));
        headers.put("list", Arrays.asList(1, 2.5));
        headers.put("table", Map.of("inner", 2.5));
        AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder()
                .headers(headers).contentType("text/plain").correlationId("c").replyTo("r")
                .messageId("m").timestamp(new Date(1_700_000_000_000L)).priority(3).build();
        byte[] body = new byte[LARGE_BYTES];
        Arrays.fill(body, (byte) 'x');
        channel.basicPublish("", QUEUE, properties, body);
        channel.waitForConfirmsOrDie(PATIENCE_MS);
        GetResponse got = channel.basicGet(QUEUE, true);
        expect(Arrays.equals(got.getBody(), body), "a large body comes back");
        expect(fields(got.getProps()).equals(fields(properties)), "back come " + got.getProps());
        expect(channel.basicGet(QUEUE, true) == null, "an empty queue says so");
        done(channel, "properties");
    }

    void seesReturns() throws Exception {
        Channel channel = open();
        BlockingQueue<String> returns = new LinkedBlockingQueue<>();
        channel.addReturnListener((code, text, exchange, key, properties, body) ->
                returns.add(code + " " + text + " " + key + " " + new String(body)));
        channel.basicPublish("", "java.nowhere", true, null, "lost".getBytes());
        channel.waitForConfirmsOrDie(PATIENCE_MS);
        String returned = receive(returns);
        expect(returned.equals("312 NO_ROUTE java.nowhere lost"), returned);
        done(channel, "return");
    }

    /** Breaks channels; each is closed with a code, and the connection lives on. */
    void seesErrors() throws Exception {
        expectCode(404, () -> open().queueDeclarePassive("java.missing"));
        expectCode(406, () -> open().queueDeclare(QUEUE, true, false, true, null));
        expectCode(406, () -> {
            Channel channel = open();
            channel.basicAck(99, false);
            return channel.messageCount(QUEUE);
        });
        done(open(), "errors");
    }

    void seesCancellation() throws Exception {
        Channel channel = open();
        BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
        channel.queueDeclare("java.cancelled", false, false, false, null);
        channel.basicConsume("java.cancelled", true, "tag", new DefaultConsumer(channel) {
            @Override
            public void handleCancel(String tag) {
                cancelled.add(tag);
            }
        });
        Channel other = open();
        other.queueDelete("java.cancelled");
        expect(receive(cancelled).equals("tag"), "a consumer hears that its queue is gone");
        other.close();
        done(channel, "cancel");
    }

    /**
     * One channel and its consumer live through both restarts; so does what was confirmed. (What
     * was acknowledged just before a broker was killed may come again.)
     */
    void survives() throws Exception {
        Channel channel = open();
        String exclusive = channel.queueDeclare().getQueue();
        channel.exchangeDeclare("java.fanout", "fanout", false, true, null);
        channel.queueBind(exclusive, "java.fanout", "");
        BlockingQueue<GetResponse> deliveries = consume(channel);
        for (String how : List.of("stop", "kill")) {
            publish(channel, "", QUEUE, "before " + how);
            receive(deliveries);
            System.out.println("restart " + how);
            input.readLine();
            receive(recoveries);
            publish(channel, "", QUEUE, "after " + how);
            Set<String> bodies = new HashSet<>();
            while (!bodies.contains("after " + how)) {
                GetResponse delivery = receive(deliveries);
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
                bodies.add(text(delivery));
            }
            expect(bodies.contains("before " + how), "nothing confirmed is lost");
            publish(channel, "java.fanout", "", "bound again");
            System.out.println("done " + how);
        }
        channel.close();
    }

    void closes() throws Exception {
        Channel channel = open();
        channel.queueDelete(QUEUE, false, true);
        done(channel, "close");
        connection.close();
        try {
            connection.createChannel();
        } catch (AlreadyClosedException closed) {
            return;
        }
        throw new AssertionError("a closed connection opens a channel");
    }

    static Connection connect() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("INTEROP_BROKER_URL"));
        factory.setNetworkRecoveryInterval(RECOVERY_INTERVAL_MS);
        return factory.newConnection();
    }

    Channel open() throws Exception {
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        return channel;
    }

    static BlockingQueue<GetResponse> consume(Channel channel) throws Exception {
        BlockingQueue<GetResponse> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(QUEUE, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(
                    String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                deliveries.add(new GetResponse(envelope, properties, body, 0));
            }
        });
        return deliveries;
    }

    static void send(Channel channel, String exchange, String key, String body) throws Exception {
        AMQP.BasicProperties persistent = MessageProperties.PERSISTENT_TEXT_PLAIN;
        channel.basicPublish(exchange, key, persistent, body.getBytes());
    }

    static void publish(Channel channel, String exchange, String key, String body)
            throws Exception {
        send(channel, exchange, key, body);
        channel.waitForConfirmsOrDie(PATIENCE_MS);
    }

    static List<Object> fields(AMQP.BasicProperties properties) {
        return List.of(
                properties.getHeaders(), properties.getContentType(), properties.getCorrelationId(),
                properties.getReplyTo(), properties.getMessageId(), properties.getTimestamp(),
                properties.getPriority());
    }

    static String text(GetResponse delivery) {
        return new String(delivery.getBody());
    }

    static <T> T receive(BlockingQueue<T> source) throws InterruptedException {
        T value = source.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
        expect(value != null, "something comes within " + PATIENCE_MS + " ms");
        return value;
    }

    /** Closes the channel and says which part is over. */
    static void done(Channel channel, String part) throws Exception {
        channel.close();
        System.out.println("done " + part);
    }

    static void expectCode(int code, Callable<?> call) {
        try {
            call.call();
        } catch (Exception error) {
            Throwable cause = error instanceof ShutdownSignalException ? error : error.getCause();
            if (cause instanceof ShutdownSignalException) {
                Method reason = (Method) ((ShutdownSignalException) cause).getReason();
                expect(((AMQP.Channel.Close) reason).getReplyCode() == code, reason.toString());
                return;
            }
            throw new AssertionError("instead of code " + code, error);
        }
        throw new AssertionError("no error instead of code " + code);
    }

    static void expect(boolean fact, String what) {
        if (!fact) {
            throw new AssertionError("not so: " + what);
        }
    }
}
