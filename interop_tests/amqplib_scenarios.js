// amqplib against the broker named by INTEROP_BROKER_URL. Run by test_amqplib.py with `node --test`.
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, test } from "node:test";
import amqp from "amqplib";

const url = process.env.INTEROP_BROKER_URL;
let connection;

before(async () => {
  connection = await amqp.connect(url);
});
after(() => connection.close());

// amqplib reports a channel error twice: to the pending call and as an event that must be heard.
async function quietChannel(kind = "createChannel") {
  const channel = await connection[kind]();
  channel.on("error", () => {});
  return channel;
}

test("declares, publishes with confirms and counts", async () => {
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue("node.confirms", { durable: true });
  for (let number = 0; number < 500; number++) {
    channel.sendToQueue(queue, Buffer.from(`${number}`), { persistent: true });
  }
  await channel.waitForConfirms();
  assert.equal((await channel.checkQueue(queue)).messageCount, 500);
  assert.equal((await channel.purgeQueue(queue)).messageCount, 500);
  await channel.deleteQueue(queue);
  await channel.close();
});

test("consumes, acks, nacks and sees what was redelivered", async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  await channel.prefetch(1);
  const seen = [];
  const done = new Promise((resolve) => {
    channel.consume(queue, (message) => {
      const again = message.fields.redelivered;
      seen.push([message.content.toString(), again]);
      if (message.content.toString() === "nacked" && !again) channel.nack(message);
      else channel.ack(message);
      if (seen.length === 3) resolve();
    });
  });
  channel.sendToQueue(queue, Buffer.from("nacked"));
  channel.sendToQueue(queue, Buffer.from("plain"));
  await done;
  assert.deepEqual(seen, [["nacked", false], ["nacked", true], ["plain", false]]);
  await channel.close();
});

test("gets, and gets nothing from an empty queue", async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("node.get", { exclusive: true });
  channel.sendToQueue(queue, Buffer.from("body"), {
    headers: { number: 5, nested: { list: [1, "two", true] } },
    correlationId: "c",
  });
  const message = await channel.get(queue, { noAck: true });
  assert.equal(message.content.toString(), "body");
  assert.deepEqual(message.properties.headers, { number: 5, nested: { list: [1, "two", true] } });
  assert.equal(message.properties.correlationId, "c");
  assert.equal(await channel.get(queue), false);
  await channel.close();
});

test("unroutable mandatory messages come back", async () => {
  const channel = await connection.createConfirmChannel();
  const returned = once(channel, "return");
  channel.publish("", "node.nowhere", Buffer.from("lost"), { mandatory: true });
  await channel.waitForConfirms();
  const [message] = await returned;
  assert.equal(message.fields.replyCode, 312);
  assert.equal(message.fields.replyText, "NO_ROUTE");
  assert.equal(message.content.toString(), "lost");
  await channel.close();
});

test("a missing queue is 404 NOT_FOUND", async () => {
  const channel = await quietChannel();
  await assert.rejects(channel.checkQueue("node.missing"), (error) => {
    assert.equal(error.code, 404);
    return /NOT_FOUND - no queue 'node.missing' in vhost '\/'/.test(error.message);
  });
});

test("another declaration is 406 PRECONDITION_FAILED", async () => {
  const channel = await quietChannel();
  await channel.assertQueue("node.other", { exclusive: true });
  const other = channel.assertQueue("node.other", { exclusive: true, messageTtl: 5 });
  await assert.rejects(other, (error) => {
    assert.equal(error.code, 406);
    return /PRECONDITION_FAILED - inequivalent arg 'x-message-ttl'/.test(error.message);
  });
});

test("acking twice closes the channel with 406", async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  channel.sendToQueue(queue, Buffer.from("once"));
  const message = await channel.get(queue);
  channel.ack(message);
  const failed = once(channel, "error");
  channel.ack(message);
  const [error] = await failed;
  assert.equal(error.code, 406);
  assert.match(error.message, /unknown delivery tag 1/);
});

test("publishing to a missing exchange closes the channel with 404", async () => {
  const channel = await connection.createChannel();
  const failed = once(channel, "error");
  channel.publish("node.missing", "key", Buffer.from("lost"));
  const [error] = await failed;
  assert.equal(error.code, 404);
});

test("a consumer learns that its queue was deleted", async () => {
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue("node.cancelled");
  const cancelled = new Promise((resolve) => channel.consume(queue, resolve));
  await channel.checkQueue(queue);
  const other = await connection.createChannel();
  await other.deleteQueue(queue);
  assert.equal(await cancelled, null);
  await other.close();
  await channel.close();
});

test("exchanges bind to exchanges, topics route", async () => {
  const channel = await connection.createChannel();
  await channel.assertExchange("node.topic", "topic", { autoDelete: true });
  await channel.assertExchange("node.fanout", "fanout", { autoDelete: true });
  const { queue } = await channel.assertQueue("", { exclusive: true });
  await channel.bindExchange("node.fanout", "node.topic", "a.#");
  await channel.bindQueue(queue, "node.fanout", "");
  for (const key of ["a.b", "b.a", "a"]) channel.publish("node.topic", key, Buffer.from(key));
  const got = [];
  for (let message; (message = await channel.get(queue, { noAck: true })); ) {
    got.push(message.content.toString());
  }
  assert.deepEqual(got, ["a.b", "a"]);
  await channel.close();
});

test("a frame size of 4096, as old versions ask for", async () => {
  const small = await amqp.connect(`${url}?frameMax=4096`);
  const channel = await small.createChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  const body = Buffer.alloc(20000, "x");
  channel.sendToQueue(queue, body);
  const message = await channel.get(queue, { noAck: true });
  assert.equal(message.content.length, body.length);
  await small.close();
});

test("reconnects after its socket was destroyed", async () => {
  const first = await amqp.connect(url);
  first.on("error", () => {});
  const channel = await first.createConfirmChannel();
  await channel.assertQueue("node.reconnect", { durable: true });
  channel.sendToQueue("node.reconnect", Buffer.from("kept"), { persistent: true });
  await channel.waitForConfirms();
  assert.ok(await channel.get("node.reconnect"));
  const closed = new Promise((resolve) => first.once("close", resolve));
  first.connection.stream.destroy(new Error("cut"));
  await closed;
  const second = await amqp.connect(url);
  const again = await second.createChannel();
  let message = false;
  for (let attempt = 0; attempt < 100 && !message; attempt++) {
    message = await again.get("node.reconnect");
    if (!message) await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.equal(message.content.toString(), "kept");
  assert.equal(message.fields.redelivered, true);
  await again.deleteQueue("node.reconnect");
  await second.close();
});

test("a wrong password is refused with 403", async () => {
  const wrong = new URL(url);
  wrong.password = "wrong";
  await assert.rejects(amqp.connect(wrong.href), /ACCESS_REFUSED|403/);
});
