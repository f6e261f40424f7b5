// RabbitMQ's Java client with its automatic recovery: a publisher and a consumer of the queue
// `java`, which end when the standard input does. Arguments: DIRECTORY PORT...

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Address;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import java.io.FileWriter;
import java.io.IOException;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;

public class RecoveringClient {
    static final String QUEUE = "java";
    static final String PUBLISHER = "java";
    static final int BATCH = 5;
    static final int PAUSE_MS = 100;
    static final int CONFIRM_MS = 15_000;
    static volatile boolean stopping;

    public static void main(String[] arguments) throws Exception {
        List<Address> nodes = new ArrayList<>();
        for (int place = 1; place < arguments.length; place++) {
            nodes.add(new Address("127.0.0.1", Integer.parseInt(arguments[place])));
        }
        ConnectionFactory factory = new ConnectionFactory();
        factory.setConnectionTimeout(6000);
        factory.setHandshakeTimeout(6000);
        factory.setChannelRpcTimeout(10_000);
        factory.setRequestedHeartbeat(4);
        factory.setNetworkRecoveryInterval(500);
        Thread publisher = new Thread(() -> publish(arguments[0], factory, nodes));
        publisher.setDaemon(true);
        publisher.start();
        consume(arguments[0], factory, nodes);
        while (System.in.read() >= 0) {}
        stopping = true;
        publisher.join(CONFIRM_MS + 5000);
        System.exit(publisher.isAlive() ? 1 : 0);
    }

    static void publish(String directory, ConnectionFactory factory, List<Address> nodes) {
        try (Journal journal = new Journal(directory, "java")) {
            Connection connection = factory.newConnection(nodes, "publisher");
            AtomicInteger recoveries = counted(connection, journal);
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            for (int number = 1; !stopping; number += BATCH) {
                int before = recoveries.get();
                boolean confirmed = false;
                try {
                    for (int more = 0; more < BATCH; more++) {
                        journal.write("sent", number + more, "0");
                        channel.basicPublish("", QUEUE, MessageProperties.PERSISTENT_BASIC,
                                (PUBLISHER + " " + (number + more) + " 0").getBytes());
                    }
                    confirmed = channel.waitForConfirms(CONFIRM_MS);
                } catch (Exception error) {
                    journal.write("error", 0, error.toString());
                }
                // A channel that was recovered knows nothing of what went out before.
                if (confirmed && recoveries.get() == before) {
                    for (int more = 0; more < BATCH; more++) {
                        journal.write("confirmed", number + more, "");
                    }
                }
                Thread.sleep(PAUSE_MS);
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    static void consume(String directory, ConnectionFactory factory, List<Address> nodes)
            throws Exception {
        Journal journal = new Journal(directory, "java-consumer");
        Connection connection = factory.newConnection(nodes, "consumer");
        counted(connection, journal);
        Channel channel = connection.createChannel();
        channel.basicQos(30);
        channel.basicConsume(QUEUE, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties,
                    byte[] body) throws IOException {
                int number = Integer.parseInt(new String(body).split(" ")[1]);
                String again = envelope.isRedeliver() ? "1" : "0";
                journal.write("got", number, QUEUE + " 0 " + again + " -1");
                try {
                    channel.basicAck(envelope.getDeliveryTag(), false);
                    journal.write("acked", number, QUEUE + " 0");
                } catch (Exception error) {
                    journal.write("error", 0, error.toString());
                }
            }
        });
    }

    /** Counts the recoveries of a connection, from their beginnings. */
    static AtomicInteger counted(Connection connection, Journal journal) {
        AtomicInteger recoveries = new AtomicInteger();
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recovered) {
                journal.write("connected", connection.getPort(), "");
            }

            @Override
            public void handleRecoveryStarted(Recoverable recovering) {
                recoveries.incrementAndGet();
            }
        });
        return recoveries;
    }

    static class Journal implements AutoCloseable {
        final PrintWriter file;

        Journal(String directory, String client) throws IOException {
            file = new PrintWriter(new FileWriter(directory + "/" + client + ".journal"), false);
        }

        synchronized void write(String event, int number, String more) {
            file.printf(Locale.ROOT, "%.3f %s %s %d %s%n", System.currentTimeMillis() / 1000.0,
                    event, PUBLISHER, number, more.replaceAll("\\s+", " "));
            file.flush();
        }

        @Override
        public void close() {
            file.close();
        }
    }
}
