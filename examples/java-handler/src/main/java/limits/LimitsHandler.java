package limits;

import com.fasterxml.jackson.core.JsonProcessingException;
import jakarta.jms.BytesMessage;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import limits.Command.Arrival;
import limits.Command.Reply;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The queue side: takes a command, has it handled in one database transaction, answers, and only then
 * acknowledges. Whenever it dies on the way, the broker delivers the command again, and the ledger in the
 * database makes the repetition harmless.
 *
 * <p>The session is client-acknowledged. A transacted one would bind the answer to the acknowledgement, but
 * not to the commit in the database, so the ledger would be needed all the same; and not every broker has
 * transactions (IBM MQ has none for AMQP). Acknowledging covers everything the session has received before,
 * which is right here, because one message is handled after the other.
 */
public final class LimitsHandler {
    private static final Logger LOG = LoggerFactory.getLogger(LimitsHandler.class);
    private static final String QUEUE = "APP.CMD.LIMITS.CheckDailyLimit.Q";

    /** Qpid's way to say with an acknowledgement that a message is refused for good. */
    private static final String ACK_TYPE = "JMS_AMQP_ACK_TYPE";
    private static final int REJECTED = 2;

    private final Session session;
    private final MessageProducer replies;
    private final DailyLimits limits;

    private LimitsHandler(Session session, DailyLimits limits) throws JMSException {
        this.session = session;
        this.limits = limits;
        // Every reply names its own queue. Messages of this producer are persistent, and sending one returns
        // when the broker has it.
        this.replies = session.createProducer(null);
    }

    public static void main(String[] args) throws Exception {
        var limits = new DailyLimits(setting("DATABASE_URL"));
        limits.createTables();
        var factory =
                new JmsConnectionFactory(setting("AMQP_USER"), setting("AMQP_PASSWORD"), setting("AMQP_URL"));
        String queue = Objects.requireNonNullElse(System.getenv("QUEUE"), QUEUE);
        try (var connection = factory.createConnection();
                var session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
                var commands = session.createConsumer(session.createQueue(queue))) {
            var handler = new LimitsHandler(session, limits);
            connection.start();
            LOG.info("ready: {}", queue);
            // Null when the connection is closed.
            for (Message message = commands.receive(); message != null; message = commands.receive()) {
                handler.handle(message);
            }
        }
        throw new IllegalStateException("the broker closed the connection");
    }

    private void handle(Message message) throws Exception {
        Arrival arrival;
        try {
            arrival = arrival(message);
        } catch (JsonProcessingException | IllegalArgumentException unreadable) {
            LOG.warn("refused {}: {}", message.getJMSMessageID(), unreadable.getMessage());
            // Nobody can be answered; the broker keeps it among its dead letters.
            message.setIntProperty(ACK_TYPE, REJECTED);
            message.acknowledge();
            return;
        }
        Reply reply = limits.handle(arrival);
        hold("committed");
        send(arrival, reply);
        hold("answered");
        message.acknowledge();
    }

    private static Arrival arrival(Message message) throws JMSException, JsonProcessingException {
        Command command = Command.read(body(message));
        String correlation = message.getJMSCorrelationID();
        // Absent where the broker has no room for it.
        if (correlation != null && !correlation.equals(command.commandId())) {
            throw new IllegalArgumentException("JMSCorrelationID is not the commandId of the envelope");
        }
        Destination replyTo = message.getJMSReplyTo();
        String queue = replyTo instanceof Queue named ? named.getQueueName() : command.header("replyTo");
        if (queue == null) {
            throw new IllegalArgumentException("neither JMSReplyTo nor headers.replyTo says whom to answer");
        }
        return new Arrival(command, correlation, queue);
    }

    /** A Data section with a content type of text arrives as text, with another one as bytes. */
    private static String body(Message message) throws JMSException {
        if (message instanceof TextMessage text) {
            return Objects.requireNonNullElse(text.getText(), "");
        }
        if (message instanceof BytesMessage bytes) {
            byte[] body = bytes.getBody(byte[].class);
            return body == null ? "" : new String(body, StandardCharsets.UTF_8);
        }
        throw new IllegalArgumentException("the body is neither text nor bytes");
    }

    private void send(Arrival arrival, Reply reply) throws JMSException {
        Command command = arrival.command();
        TextMessage message = session.createTextMessage(reply.json());
        message.setJMSCorrelationID(arrival.correlationId());
        // The envelope says it all; these save dipmo's operators from opening it.
        message.setStringProperty("messageId", reply.messageId());
        message.setStringProperty("eventType", reply.type());
        message.setStringProperty("commandId", command.commandId());
        message.setStringProperty("correlationId", command.correlationId());
        message.setStringProperty("causationId", command.messageId());
        message.setStringProperty("key", command.key());
        message.setStringProperty("tenantId", command.header("tenantId"));
        replies.send(session.createQueue(arrival.replyTo()), message);
    }

    /** For tests that kill it: the first time it gets to this point it says so with a file and stays there. */
    private static void hold(String point) throws Exception {
        if (point.equals(System.getenv("HOLD_AT")) && new File(setting("HOLD_FILE")).createNewFile()) {
            Thread.currentThread().join();
        }
    }

    private static String setting(String name) {
        String value = System.getenv(name);
        if (value == null || value.isEmpty()) {
            throw new IllegalArgumentException("set " + name + ", as the README says");
        }
        return value;
    }
}
