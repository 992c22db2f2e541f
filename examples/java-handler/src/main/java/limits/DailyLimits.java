package limits;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import limits.Command.Arrival;
import limits.Command.Reply;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The database side: what has come (inbox), what was answered (ledger) and how much of its limit an account
 * has used. One command is one transaction over all three.
 */
final class DailyLimits {
    private static final Logger LOG = LoggerFactory.getLogger(DailyLimits.class);

    // The lock lets several handlers start at once.
    private static final String TABLES = """
            select pg_advisory_xact_lock(hashtext('limits_java'));
            create schema if not exists limits_java;
            create table if not exists limits_java.inbox (
                message_id     text primary key,
                correlation_id text,
                reply_to       text not null,
                deliveries     integer not null default 1,
                received_at    timestamptz not null default now());
            create table if not exists limits_java.ledger (
                idempotency_key text primary key,
                reply           text,
                recorded_at     timestamptz not null default now());
            create table if not exists limits_java.daily_limit (
                account text primary key,
                amount  numeric not null);
            create table if not exists limits_java.used (
                account text references limits_java.daily_limit,
                day     date,
                amount  numeric not null,
                primary key (account, day));
            """;

    private static final String NOTE = """
            insert into limits_java.inbox (message_id, correlation_id, reply_to) values (?, ?, ?)
            on conflict (message_id) do update set deliveries = inbox.deliveries + 1
            """;

    // Whoever comes second waits here for the first, and then finds its reply.
    private static final String CLAIM = """
            insert into limits_java.ledger (idempotency_key) values (?) on conflict do nothing
            """;
    private static final String RECORDED = "select reply from limits_java.ledger where idempotency_key = ?";
    private static final String RECORD = "update limits_java.ledger set reply = ? where idempotency_key = ?";

    private static final String USE = """
            insert into limits_java.used (account, day, amount)
            select account, current_date, ? from limits_java.daily_limit where account = ?
            on conflict (account, day) do update set amount = used.amount + excluded.amount
            returning (select amount from limits_java.daily_limit l where l.account = used.account) - used.amount
            """;

    private final String url;

    DailyLimits(String url) {
        this.url = url;
    }

    void createTables() throws SQLException {
        try (Connection db = connect(); var statement = db.createStatement()) {
            statement.execute(TABLES);
            db.commit();
        }
    }

    /** The reply to a command: of the first time it was handled, or of now. It is committed before it returns. */
    Reply handle(Arrival arrival) {
        Command command = arrival.command();
        try (Connection db = connect()) {
            Reply reply = handle(db, arrival);
            db.commit();
            return reply;
        } catch (SQLException failure) {
            // Nothing was committed, or it was and the next delivery finds it. Not recorded: the next try counts.
            LOG.warn("command {} failed: {}", command.commandId(), failure.getMessage());
            return command.failed("DATABASE", "the database refused or is away: " + failure.getSQLState(), true);
        }
    }

    private Reply handle(Connection db, Arrival arrival) throws SQLException {
        Command command = arrival.command();
        String key = command.idempotencyKey();
        execute(db, NOTE, command.messageId(), arrival.correlationId(), arrival.replyTo());
        if (execute(db, CLAIM, key) == 0) {
            return Reply.recorded(text(db, RECORDED, key));
        }
        Reply reply = decide(db, command);
        execute(db, RECORD, reply.json(), key);
        return reply;
    }

    /** A refusal undoes what the command has written, and is recorded like a success. */
    private Reply decide(Connection db, Command command) throws SQLException {
        Savepoint before = db.setSavepoint();
        try {
            BigDecimal left = use(db, command);
            return command.completed(Command.object().put("remaining", left.toPlainString()));
        } catch (Refused refused) {
            db.rollback(before);
            return command.failed(refused.code, refused.getMessage(), false);
        }
    }

    private BigDecimal use(Connection db, Command command) throws SQLException, Refused {
        String account = command.payload().path("account").textValue();
        BigDecimal amount = amount(command.payload().path("amount").asText());
        if (account == null || amount == null || amount.signum() <= 0) {
            throw new Refused("BAD_PAYLOAD", "account and a positive amount are needed");
        }
        try (PreparedStatement statement = db.prepareStatement(USE)) {
            statement.setBigDecimal(1, amount);
            statement.setString(2, account);
            ResultSet row = statement.executeQuery();
            if (!row.next()) {
                throw new Refused("UNKNOWN_ACCOUNT", "the account has no daily limit");
            }
            BigDecimal left = row.getBigDecimal(1);
            if (left.signum() < 0) {
                throw new Refused("DAILY_LIMIT_EXCEEDED", "over the daily limit by " + left.negate().toPlainString());
            }
            return left;
        }
    }

    private static BigDecimal amount(String text) {
        try {
            return new BigDecimal(text);
        } catch (NumberFormatException notANumber) {
            return null;
        }
    }

    /** One connection a command is enough for an example; use a pool where there are many. */
    private Connection connect() throws SQLException {
        Connection db = DriverManager.getConnection(url);
        db.setAutoCommit(false);
        return db;
    }

    private static int execute(Connection db, String sql, String... values) throws SQLException {
        try (PreparedStatement statement = prepared(db, sql, values)) {
            return statement.executeUpdate();
        }
    }

    private static String text(Connection db, String sql, String... values) throws SQLException {
        try (PreparedStatement statement = prepared(db, sql, values)) {
            ResultSet row = statement.executeQuery();
            row.next();
            return row.getString(1);
        }
    }

    private static PreparedStatement prepared(Connection db, String sql, String... values) throws SQLException {
        PreparedStatement statement = db.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) {
            statement.setString(i + 1, values[i]);
        }
        return statement;
    }

    /** The business says no: the command fails with this code, for good. */
    private static final class Refused extends Exception {
        private static final long serialVersionUID = 1;
        private final String code;

        private Refused(String code, String message) {
            super(message);
            this.code = code;
        }
    }
}
