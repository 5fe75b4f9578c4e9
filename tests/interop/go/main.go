// The Azure SDKs for Go at the disposal of tests/harness/client/sdk_program.py: does what each line of standard input asks for, at
// once, and answers with a line of standard output when it is done.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
)

// request is a line of standard input; Of is the number of the object that the operation is of.
type request struct {
	Request   int             `json:"request"`
	Operation string          `json:"operation"`
	Of        int             `json:"of"`
	Arguments json.RawMessage `json:"arguments"`
}

type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type reply struct {
	Request int      `json:"request"`
	Result  any      `json:"result"`
	Error   *failure `json:"error,omitempty"`
}

// operation reads its arguments by the function that it is given.
type operation func(ctx context.Context, of any, read func(into any) error) (any, error)

// on makes an operation of a function on objects of one type, with arguments of one type.
func on[O, A any](do func(ctx context.Context, of O, arguments A) (any, error)) operation {
	return func(ctx context.Context, of any, read func(into any) error) (any, error) {
		object, fits := of.(O)
		if !fits && of != nil {
			return nil, fmt.Errorf("not for %T", of)
		}
		var arguments A
		if err := read(&arguments); err != nil {
			return nil, err
		}
		return do(ctx, object, arguments)
	}
}

type none struct{}

// objects are clients, senders, receivers and messages, by the number that the test knows them by.
var (
	objects     = map[int]any{}
	objectsLock sync.Mutex
)

func keep(object any) int {
	objectsLock.Lock()
	defer objectsLock.Unlock()
	objects[len(objects)+1] = object
	return len(objects)
}

func found(number int) any {
	objectsLock.Lock()
	defer objectsLock.Unlock()
	return objects[number]
}

func codeOf(err error) string {
	var messaging *azservicebus.Error
	var eventHub *azeventhubs.Error
	var condition *amqp.Error
	var response *azcore.ResponseError
	switch {
	case errors.Is(err, azservicebus.ErrMessageTooLarge):
		return "ErrMessageTooLarge"
	case errors.As(err, &messaging):
		return string(messaging.Code)
	case errors.As(err, &eventHub):
		return string(eventHub.Code)
	case errors.As(err, &condition):
		return string(condition.Condition)
	case errors.As(err, &response):
		return strconv.Itoa(response.StatusCode)
	}
	return fmt.Sprintf("%T", err)
}

func answer(asked request, operations map[string]operation) reply {
	do, known := operations[asked.Operation]
	if !known {
		return reply{asked.Request, nil, &failure{"unknown", asked.Operation}}
	}
	result, err := do(context.Background(), found(asked.Of), func(into any) error {
		return json.Unmarshal(asked.Arguments, into)
	})
	if err != nil {
		return reply{asked.Request, nil, &failure{codeOf(err), err.Error()}}
	}
	return reply{asked.Request, result, nil}
}

func main() {
	operations := map[string]operation{}
	for _, some := range []map[string]operation{serviceBus, administration, eventHubs} {
		for name, do := range some {
			operations[name] = do
		}
	}
	var writing sync.Mutex
	output := json.NewEncoder(os.Stdout)
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		go func() {
			described := answer(asked, operations)
			writing.Lock()
			defer writing.Unlock()
			if err := output.Encode(described); err != nil {
				panic(err)
			}
		}()
	}
}
