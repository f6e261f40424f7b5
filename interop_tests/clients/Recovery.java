// RabbitMQ's Java client, which is given several addresses, with its automatic recovery: publishes
// numbers, each until it is confirmed, and consumes them. Run by test_cluster_faults.py.
//
// java Recovery.java QUEUE HOST:PORT,HOST:PORT,...
//
// It tells `confirmed N` and `got N`; a line on its input ends what it publishes, another one ends it.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Address;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.TimeoutException;

public class Recovery {
    static final int CONFIRM_MS = 30_000;
    static final int PACE_MS = 10;
    static final int RECOVERY_INTERVAL_MS = 200;
    static final int HEARTBEAT_SECONDS = 4;

    static volatile boolean publishes = true;

    public static void main(String[] arguments) {
        try {
            run(arguments[0], Address.parseAddresses(arguments[1]));
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the client's own threads would keep the program alive
        }
    }

    static void run(String queue, Address[] addresses) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setNetworkRecoveryInterval(RECOVERY_INTERVAL_MS);
        factory.setRequestedHeartbeat(HEARTBEAT_SECONDS);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        Connection consuming = factory.newConnection(addresses);
        Connection publishing = factory.newConnection(addresses);
        consume(consuming.createChannel(), queue);
        Thread publisher = new Thread(() -> publish(publishing, queue));
        publisher.start();
        input.readLine();
        publishes = false;
        publisher.join();
        tell("published", 0);
        input.readLine();
        publishing.close();
        consuming.close();
    }

    static void consume(Channel channel, String queue) throws IOException {
        channel.basicQos(20);
        channel.basicConsume(queue, false, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(
                    String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                    throws IOException {
                tell("got", Integer.parseInt(new String(body)));
                channel.basicAck(envelope.getDeliveryTag(), false);
            }
        });
    }

    static void publish(Connection connection, String queue) {
        try {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            int number = 0;
            while (publishes) {
                if (isConfirmed(channel, queue, number)) {
                    tell("confirmed", number++);
                }
                Thread.sleep(PACE_MS);
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    /** Whether a publish was confirmed; without a connection it was not. */
    static boolean isConfirmed(Channel channel, String queue, int number)
            throws InterruptedException {
        try {
            byte[] body = String.valueOf(number).getBytes();
            channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, body);
            return channel.waitForConfirms(CONFIRM_MS);
        } catch (ShutdownSignalException | TimeoutException | IOException error) {
            return false;
        }
    }

    static void tell(String what, int number) {
        synchronized (System.out) {
            System.out.println(what + " " + number);
            System.out.flush();
        }
    }
}
