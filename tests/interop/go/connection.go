package main

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/coder/websocket"
)

const (
	tcp           = "tcp"
	overTLS       = "tls"
	overWebSocket = "websocket"
)

// reach says how a client reaches the namespace. Over TLS it trusts the authority that SSL_CERT_FILE names.
type reach struct {
	Connection string `json:"connection"`
	Transport  string `json:"transport"`
	Retries    int32  `json:"retries"`
}

// connectionString is without the port for TLS: these SDKs would look for it in the certificate.
func (r reach) connectionString() string {
	if r.Transport == tcp {
		return r.Connection
	}
	secure := strings.Replace(r.Connection, ";UseDevelopmentEmulator=true", "", 1)
	if r.Transport == overWebSocket {
		return secure
	}
	return strings.Replace(secure, r.endpoint(), strings.Split(r.endpoint(), ":")[0], 1)
}

// endpoint is the host and port to dial.
func (r reach) endpoint() string {
	behind := strings.SplitN(r.Connection, "//", 2)[1]
	return strings.SplitN(behind, "/", 2)[0]
}

func (r reach) customEndpoint() string {
	if r.Transport == overTLS {
		return r.endpoint()
	}
	return ""
}

// maxRetries is none where none are asked for, which the SDKs write as -1.
func (r reach) maxRetries() int32 {
	if r.Retries == 0 {
		return -1
	}
	return r.Retries
}

const retryDelay = 200 * time.Millisecond

func dialWebSocket(ctx context.Context, url string) (net.Conn, error) {
	connection, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: []string{"amqp"}})
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(context.Background(), connection, websocket.MessageBinary), nil
}
