# Ruby's bunny against the broker named by INTEROP_BROKER_URL, with its automatic recovery. Run by
# test_round_trips.py.
require "bunny"
require "logger"
require "timeout"

PATIENCE_SECONDS = 30
MESSAGES = 500
LARGE_BYTES = 300_000
QUEUE = "ruby.durable"

# Everything in order; each part says when it is over.
class RoundTrip
  def initialize(url)
    @recoveries = Queue.new
    @connection = Bunny.new(
      url, network_recovery_interval: 0.1, logger: Logger.new($stderr, level: :fatal),
           recovery_completed: -> { @recoveries << :recovered }
    )
    @connection.start
  end

  def run
    routes
    confirms
    settles
    keeps_properties
    sees_returns
    sees_errors
    sees_cancellation
    survives
    closes
  end

  def routes
    channel = open
    queue = durable(channel)
    topic = channel.topic("ruby.topic", durable: true)
    queue.bind(topic, routing_key: "stock.#")
    publish(topic, "stock.usd", "bound")
    publish(topic, "bond.usd", "not bound")
    expect(queue.message_count == 1, "one of two messages is routed")
    queue.purge
    queue.unbind(topic, routing_key: "stock.#")
    topic.delete(if_unused: true)
    done(channel, "route")
  end

  def confirms
    channel = open
    MESSAGES.times { |number| send_to(channel.default_exchange, QUEUE, number.to_s) }
    expect(channel.wait_for_confirms, "every message is confirmed")
    expect(durable(channel).message_count == MESSAGES, "every message is there")
    done(channel, "confirm")
  end

  # Gets rid of what confirms has left, in every way there is.
  def settles
    channel = open
    channel.prefetch(10)
    deliveries = consume(channel)
    tags = Array.new(10) do |number|
      info, body = receive(deliveries)
      expect(body == number.to_s, "the order is kept")
      info.delivery_tag
    end
    channel.ack(tags[4], true)
    channel.reject(tags[5], false)
    channel.nack(tags[9], true, true) # 6 to 9 come again
    again = (6...MESSAGES).count do
      info, = receive(deliveries)
      channel.ack(info.delivery_tag)
      info.redelivered?
    end
    expect(again == 4, "what was given back is marked as redelivered")
    channel.close
    channel = open
    expect(durable(channel).message_count.zero?, "everything is settled")
    done(channel, "settle")
  end

  def keeps_properties
    channel = open
    headers = {
      "number" => 5, "text" => "words", "flag" => true, "float" => 2.5, "when" => Time.at(1_700_000_000),
      "list" => [1, "two"], "table" => { "inner" => "x" }
    }
    sent = { headers: headers, content_type: "text/plain", correlation_id: "c", reply_to: "r",
             message_id: "m", priority: 3 }
    body = "0123456789" * (LARGE_BYTES / 10)
    seconds = 1_700_000_000
    channel.default_exchange.publish(body, routing_key: QUEUE, timestamp: seconds, **sent)
    _, got, back = durable(channel).pop
    expect(back == body, "a large body comes back")
    sent.each { |name, value| expect(got[name] == value, "#{name} comes back: #{got[name]}") }
    expect(got.timestamp == Time.at(seconds), "the timestamp comes back")
    expect(durable(channel).pop == [nil, nil, nil], "an empty queue says so")
    done(channel, "properties")
  end

  def sees_returns
    channel = open
    returns = Queue.new
    direct = channel.direct("amq.direct")
    direct.on_return { |info, _, body| returns << [info, body] }
    direct.publish("lost", routing_key: "ruby.nowhere", mandatory: true)
    expect(channel.wait_for_confirms, "a returned message is confirmed")
    info, body = receive(returns)
    expect([info.reply_code, info.reply_text, body] == [312, "NO_ROUTE", "lost"], "NO_ROUTE")
    done(channel, "return")
  end

  # Breaks channels; each is closed with a code, and the connection lives on.
  def sees_errors
    raises(Bunny::NotFound) { open.queue("ruby.missing", passive: true) }
    raises(Bunny::PreconditionFailed) { open.queue(QUEUE, durable: true, auto_delete: true) }
    channel = open
    closed = Queue.new
    channel.on_error { |_, close| closed << close.reply_code }
    channel.basic_ack(99)
    expect(receive(closed) == 406, "an unknown delivery tag closes the channel")
    done(open, "errors")
  end

  def sees_cancellation
    channel = open
    cancelled = Queue.new
    queue = channel.queue("ruby.cancelled")
    consumer = Bunny::Consumer.new(channel, queue, "tag")
    consumer.on_cancellation { |cancel| cancelled << cancel.consumer_tag }
    queue.subscribe_with(consumer)
    open.queue_delete("ruby.cancelled")
    expect(receive(cancelled) == "tag", "a consumer hears that its queue is gone")
    done(channel, "cancel")
  end

  # One channel and its consumer live through both restarts; so does what was confirmed. (What was
  # acknowledged just before a broker was killed may come again.)
  def survives
    channel = open
    fanout = channel.fanout("ruby.fanout", auto_delete: true)
    channel.queue("", exclusive: true).bind(fanout)
    deliveries = consume(channel)
    %w[stop kill].each do |how|
      publish(channel.default_exchange, QUEUE, "before #{how}")
      receive(deliveries)
      restart(how)
      publish(channel.default_exchange, QUEUE, "after #{how}")
      bodies = []
      until bodies.include?("after #{how}")
        info, body = receive(deliveries)
        channel.ack(info.delivery_tag)
        bodies << body
      end
      expect(bodies.include?("before #{how}"), "nothing confirmed is lost")
      publish(fanout, "", "bound again")
      puts "done #{how}"
    end
    channel.close
  end

  def closes
    channel = open
    durable(channel).delete(if_empty: true)
    done(channel, "close")
    @connection.close
    raises(Bunny::ConnectionAlreadyClosed) { @connection.create_channel }
  end

  private

  def open
    @connection.create_channel.tap(&:confirm_select)
  end

  def durable(channel)
    channel.queue(QUEUE, durable: true)
  end

  def consume(channel)
    deliveries = Queue.new
    durable(channel).subscribe(manual_ack: true) { |info, _, body| deliveries << [info, body] }
    deliveries
  end

  def send_to(exchange, key, body)
    exchange.publish(body, routing_key: key, persistent: true)
  end

  def publish(exchange, key, body)
    send_to(exchange, key, body)
    expect(exchange.channel.wait_for_confirms, "a message is confirmed")
  end

  def receive(source)
    Timeout.timeout(PATIENCE_SECONDS) { source.pop }
  end

  # Has the broker stopped or killed and started again by whoever runs this program.
  def restart(how)
    puts "restart #{how}"
    $stdin.gets
    receive(@recoveries)
  end

  # Closes the channel and says which part is over.
  def done(channel, part)
    channel.close
    puts "done #{part}"
  end

  def raises(kind)
    yield
  rescue kind
    nil
  else
    raise "no #{kind} was raised"
  end

  def expect(fact, what)
    raise "not so: #{what}" unless fact
  end
end

$stdout.sync = true
RoundTrip.new(ENV.fetch("INTEROP_BROKER_URL")).run
