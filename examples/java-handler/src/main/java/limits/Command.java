package limits;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.util.List;
import java.util.UUID;

/** A command as its envelope tells it. Fields that are not needed here may be there. */
record Command(JsonNode envelope) {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<String> NEEDED = List.of("messageId", "name", "commandId", "correlationId", "key");
    private static final List<String> KEPT =
            List.of("tenantId", "schemaVersion", "idempotencyKey", "traceId", "spanId");

    static Command read(String text) throws JsonProcessingException {
        var command = new Command(JSON.readTree(text));
        for (String field : NEEDED) {
            if (!command.envelope.path(field).isTextual()) {
                throw new IllegalArgumentException("the envelope has no text " + field);
            }
        }
        if (command.idempotencyKey() == null) {
            throw new IllegalArgumentException("the envelope has no header idempotencyKey");
        }
        return command;
    }

    static ObjectNode object() {
        return JSON.createObjectNode();
    }

    String messageId() {
        return envelope.get("messageId").textValue();
    }

    String commandId() {
        return envelope.get("commandId").textValue();
    }

    String correlationId() {
        return envelope.get("correlationId").textValue();
    }

    String key() {
        return envelope.get("key").textValue();
    }

    String idempotencyKey() {
        return header("idempotencyKey");
    }

    String header(String name) {
        return envelope.path("headers").path(name).textValue();
    }

    JsonNode payload() {
        return envelope.path("payload");
    }

    Reply completed(JsonNode result) {
        return reply("CommandCompleted", result);
    }

    /** Sending a retryable command again may help; the saga decides when and how often. */
    Reply failed(String code, String message, boolean retryable) {
        return reply("CommandFailed", object().put("code", code).put("message", message).put("retryable", retryable));
    }

    /** Same command, saga and key, caused by this message. */
    private Reply reply(String type, JsonNode payload) {
        String id = UUID.randomUUID().toString();
        ObjectNode headers = object();
        KEPT.stream().filter(name -> header(name) != null).forEach(name -> headers.put(name, header(name)));
        ObjectNode reply = object();
        reply.put("messageId", id).put("type", type).put("name", envelope.get("name").textValue());
        reply.put("commandId", commandId()).put("correlationId", correlationId()).put("causationId", messageId());
        reply.put("occurredAt", Instant.now().toString()).put("key", key());
        reply.set("headers", headers);
        reply.set("payload", payload);
        return new Reply(id, type, reply.toString());
    }

    /** A reply as it is recorded and sent, however often. */
    record Reply(String messageId, String type, String json) {
        static Reply recorded(String json) {
            try {
                JsonNode reply = JSON.readTree(json);
                return new Reply(reply.get("messageId").textValue(), reply.get("type").textValue(), json);
            } catch (JsonProcessingException broken) {
                throw new IllegalStateException("the ledger holds something that is not a reply", broken);
            }
        }
    }

    /** A command as it came from the queue. */
    record Arrival(Command command, String correlationId, String replyTo) {}
}
