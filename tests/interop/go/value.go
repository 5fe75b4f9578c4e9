package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/Azure/go-amqp"
)

// Values as JSON that contains their type: {"string": "a"}, {"int32": 1}, {"date": 0}, {"null": true}, and so on.

// decoders read the value of a tag.
var decoders = map[string]func(json.RawMessage) (any, error){
	"bool":    as[bool],
	"string":  as[string],
	"int8":    as[int8],
	"int16":   as[int16],
	"int32":   as[int32],
	"int64":   as[int64],
	"uint8":   as[uint8],
	"uint16":  as[uint16],
	"uint32":  as[uint32],
	"uint64":  as[uint64],
	"float32": as[float32],
	"float64": as[float64],
	"null":    func(json.RawMessage) (any, error) { return nil, nil },
	"date": func(raw json.RawMessage) (any, error) {
		var milliseconds int64
		err := json.Unmarshal(raw, &milliseconds)
		return time.UnixMilli(milliseconds).UTC(), err
	},
	"bytes": func(raw json.RawMessage) (any, error) { return bytesOf(raw) },
	"uuid": func(raw json.RawMessage) (any, error) {
		decoded, err := bytesOf(raw)
		var made amqp.UUID
		copy(made[:], decoded)
		return made, err
	},
}

func as[T any](raw json.RawMessage) (any, error) {
	var value T
	err := json.Unmarshal(raw, &value)
	return value, err
}

func bytesOf(raw json.RawMessage) ([]byte, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, err
	}
	return hex.DecodeString(text)
}

type tagged map[string]json.RawMessage

func decodeAll(given map[string]tagged) (map[string]any, error) {
	if given == nil {
		return nil, nil
	}
	values := map[string]any{}
	for name, value := range given {
		for tag, raw := range value {
			decode, known := decoders[tag]
			if !known {
				return nil, fmt.Errorf("no type %s", tag)
			}
			decoded, err := decode(raw)
			if err != nil {
				return nil, err
			}
			values[name] = decoded
		}
	}
	return values, nil
}

func encode(value any) map[string]any {
	switch typed := value.(type) {
	case nil:
		return map[string]any{"null": true}
	case time.Time:
		return map[string]any{"date": typed.UnixMilli()}
	case []byte:
		return map[string]any{"bytes": hex.EncodeToString(typed)}
	case amqp.UUID:
		return map[string]any{"uuid": hex.EncodeToString(typed[:])}
	}
	return map[string]any{fmt.Sprintf("%T", value): value}
}

func encodeAll(values map[string]any) map[string]any {
	if values == nil {
		return nil
	}
	described := map[string]any{}
	for name, value := range values {
		described[name] = encode(value)
	}
	return described
}

func milliseconds(at *time.Time) *int64 {
	if at == nil {
		return nil
	}
	found := at.UnixMilli()
	return &found
}
