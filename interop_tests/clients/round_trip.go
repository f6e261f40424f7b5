// Go's amqp091-go against the broker named by INTEROP_BROKER_URL. Run by test_round_trips.py.
//
// It hears of confirms over NotifyPublish. The deferred confirmations of releases before 1.8 begin to
// wait only after a message was sent: they miss a confirm that is faster, and wait for ever
// (rabbitmq/amqp091-go#182).
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	patience   = 30 * time.Second
	pause      = 50 * time.Millisecond
	messages   = 500
	largeBytes = 300_000
	queue      = "go.durable"
)

var url = os.Getenv("INTEROP_BROKER_URL")

// confirming is a channel that confirms, with what it has confirmed, in the order of publishing.
type confirming struct {
	*amqp.Channel
	confirmed <-chan amqp.Confirmation
}

func main() {
	connection := dial()
	routes(connection)
	confirms(connection)
	settles(connection)
	keepsProperties(connection)
	seesReturns(connection)
	seesErrors(connection)
	seesCancellation(connection)
	for _, how := range []string{"stop", "kill"} {
		connection = survives(connection, how)
	}
	closes(connection)
}

func routes(connection *amqp.Connection) {
	channel := open(connection)
	declare(channel)
	check(channel.ExchangeDeclare("go.topic", "topic", true, false, false, false, nil))
	check(channel.QueueBind(queue, "stock.#", "go.topic", false, nil))
	publish(channel, "go.topic", "stock.usd", "bound")
	publish(channel, "go.topic", "bond.usd", "not bound")
	purged, err := channel.QueuePurge(queue, false)
	check(err)
	expect(purged == 1, "one of two messages is routed")
	check(channel.QueueUnbind(queue, "stock.#", "go.topic", nil))
	check(channel.ExchangeDelete("go.topic", true, false))
	done(channel, "route")
}

func confirms(connection *amqp.Connection) {
	channel := open(connection)
	for number := 0; number < messages; number++ {
		send(channel, "", queue, fmt.Sprint(number))
	}
	for number := 0; number < messages; number++ {
		confirmation := receive(channel.confirmed)
		expect(confirmation.Ack, "every message is confirmed")
		expect(confirmation.DeliveryTag == uint64(number+1), "each by its number")
	}
	expect(declare(channel).Messages == messages, "every message is there")
	done(channel, "confirm")
}

// settles gets rid of what confirms has left, in every way there is.
func settles(connection *amqp.Connection) {
	channel := open(connection)
	check(channel.Qos(10, 0, false))
	deliveries := consume(channel)
	first := make([]amqp.Delivery, 10)
	for number := range first {
		first[number] = receive(deliveries)
		expect(string(first[number].Body) == fmt.Sprint(number), "the order is kept")
	}
	check(first[4].Ack(true))
	check(first[5].Reject(false))
	check(first[9].Nack(true, true)) // 6 to 9 come again
	again := 0
	for number := 6; number < messages; number++ {
		delivery := receive(deliveries)
		if delivery.Redelivered {
			again++
		}
		check(delivery.Ack(false))
	}
	expect(again == 4, "what was given back is marked as redelivered")
	check(channel.Close())
	channel = open(connection)
	expect(declare(channel).Messages == 0, "everything is settled")
	done(channel, "settle")
}

func keepsProperties(connection *amqp.Connection) {
	channel := open(connection)
	sent := amqp.Publishing{
		Headers: amqp.Table{
			"number": int64(5), "text": "é", "flag": true, "when": time.Unix(1_700_000_000, 0),
			"list": []interface{}{int32(1), "two"}, "table": amqp.Table{"inner": 2.5},
		},
		ContentType: "text/plain", CorrelationId: "c", ReplyTo: "r", MessageId: "m",
		Timestamp: time.Unix(1_700_000_000, 0), Priority: 3,
		Body: bytes.Repeat([]byte("0123456789"), largeBytes/10),
	}
	check(channel.PublishWithContext(context.Background(), "", queue, false, false, sent))
	got, there, err := channel.Get(queue, true)
	check(err)
	expect(there && bytes.Equal(got.Body, sent.Body), "a large body comes back")
	expect(fmt.Sprint(got.Headers) == fmt.Sprint(sent.Headers), "headers come back")
	expect(got.CorrelationId == "c" && got.ReplyTo == "r" && got.MessageId == "m" &&
		got.ContentType == "text/plain" && got.Timestamp.Equal(sent.Timestamp) &&
		got.Priority == 3, "properties come back")
	_, there, err = channel.Get(queue, true)
	check(err)
	expect(!there, "an empty queue says so")
	done(channel, "properties")
}

func seesReturns(connection *amqp.Connection) {
	channel := open(connection)
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	lost := amqp.Publishing{Body: []byte("lost")}
	check(channel.PublishWithContext(context.Background(), "", "go.nowhere", true, false, lost))
	expect(receive(channel.confirmed).Ack, "a returned message is confirmed")
	returned := receive(returns)
	expect(returned.ReplyCode == 312 && returned.ReplyText == "NO_ROUTE", "NO_ROUTE")
	expect(string(returned.Body) == "lost", "the body comes back")
	done(channel, "return")
}

// seesErrors breaks channels, then a connection; each is closed with a code, and nothing else is.
func seesErrors(connection *amqp.Connection) {
	_, err := open(connection).QueueDeclarePassive("go.missing", true, false, false, false, nil)
	expectCode(err, amqp.NotFound)
	_, err = open(connection).QueueDeclare(queue, true, true, false, false, nil)
	expectCode(err, amqp.PreconditionFailed)
	channel := open(connection)
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	check(channel.Ack(99, false))
	expectCode(receive(closed), amqp.PreconditionFailed)
	other := dial()
	closed = other.NotifyClose(make(chan *amqp.Error, 1))
	immediate := amqp.Publishing{Body: []byte("immediate")}
	check(open(other).PublishWithContext(context.Background(), "", queue, false, true, immediate))
	expectCode(receive(closed), amqp.NotImplemented)
	done(open(connection), "errors")
}

func seesCancellation(connection *amqp.Connection) {
	channel := open(connection)
	_, err := channel.QueueDeclare("go.cancelled", false, false, false, false, nil)
	check(err)
	cancelled := channel.NotifyCancel(make(chan string, 1))
	_, err = channel.Consume("go.cancelled", "tag", true, false, false, false, nil)
	check(err)
	_, err = open(connection).QueueDelete("go.cancelled", false, false, false)
	check(err)
	expect(receive(cancelled) == "tag", "a consumer hears that its queue is gone")
	done(channel, "cancel")
}

// survives publishes around a restart; this client leaves it to the program to connect again.
// (What was acknowledged just before a broker was killed may come again.)
func survives(connection *amqp.Connection, how string) *amqp.Connection {
	channel := open(connection)
	deliveries := consume(channel)
	publish(channel, "", queue, "before "+how)
	receive(deliveries)
	gone := connection.NotifyClose(make(chan *amqp.Error, 1))
	restart(how)
	receive(gone)
	connection = dial()
	channel = open(connection)
	publish(channel, "", queue, "after "+how)
	deliveries = consume(channel)
	bodies := map[string]bool{}
	for !bodies["after "+how] {
		delivery := receive(deliveries)
		check(delivery.Ack(false))
		bodies[string(delivery.Body)] = true
	}
	expect(bodies["before "+how], "nothing confirmed is lost")
	done(channel, how)
	return connection
}

func closes(connection *amqp.Connection) {
	channel := open(connection)
	_, err := channel.QueueDelete(queue, false, true, false)
	check(err)
	done(channel, "close")
	check(connection.Close())
	_, err = connection.Channel()
	expect(errors.Is(err, amqp.ErrClosed), "a closed connection opens no channel")
}

// dial tries again until the broker is there.
func dial() *amqp.Connection {
	deadline := time.Now().Add(patience)
	for {
		connection, err := amqp.Dial(url)
		if err == nil {
			return connection
		}
		if time.Now().After(deadline) {
			log.Panicf("no connection within %v: %v", patience, err)
		}
		time.Sleep(pause)
	}
}

func open(connection *amqp.Connection) confirming {
	channel, err := connection.Channel()
	check(err)
	check(channel.Confirm(false))
	return confirming{channel, channel.NotifyPublish(make(chan amqp.Confirmation, messages))}
}

func declare(channel confirming) amqp.Queue {
	declared, err := channel.QueueDeclare(queue, true, false, false, false, nil)
	check(err)
	return declared
}

func consume(channel confirming) <-chan amqp.Delivery {
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	check(err)
	return deliveries
}

func send(channel confirming, exchange, key, body string) {
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
	check(channel.PublishWithContext(context.Background(), exchange, key, false, false, message))
}

func publish(channel confirming, exchange, key, body string) {
	send(channel, exchange, key, body)
	expect(receive(channel.confirmed).Ack, "a message is confirmed")
}

// receive waits for what a channel of this program brings, and not for ever.
func receive[T any](source <-chan T) T {
	select {
	case value := <-source:
		return value
	case <-time.After(patience):
		log.Panicf("nothing came within %v", patience)
		panic("unreachable")
	}
}

// restart has the broker stopped or killed and started again by whoever runs this program.
func restart(how string) {
	fmt.Println("restart", how)
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)
}

// done closes the channel and says which part is over.
func done(channel confirming, part string) {
	check(channel.Close())
	fmt.Println("done", part)
}

func expectCode(err error, code int) {
	var closed *amqp.Error
	if !errors.As(err, &closed) || closed.Code != code {
		log.Panicf("%v instead of code %d", err, code)
	}
}

func expect(fact bool, what string) {
	if !fact {
		log.Panic("not so: ", what)
	}
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
