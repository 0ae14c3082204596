// Implements the plants API with Go's net/http and pgx. pgx prepares the statements.
// The program caches tokens for three seconds.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v4/pgxpool"
)

type plant struct {
	Name string  `json:"name"`
	Tag  *string `json:"tag,omitempty"`
}

type newPlant struct {
	ID   *int64  `json:"id"`
	Name *string `json:"name"`
	Tag  *string `json:"tag"`
}

type cachedToken struct {
	username string
	until    time.Time
}

const (
	selectPlants = "select name, tag from plants where owner = $1 order by id limit $2"
	insertPlant  = "insert into plants (owner, id, name, tag) values ($1, $2, $3, $4) on conflict do nothing"
	deletePlant  = "delete from plants where owner = $1 and id = $2"
)

var (
	pool   *pgxpool.Pool
	tokens sync.Map
)

func respond(w http.ResponseWriter, status int, body interface{}) {
	text, _ := json.Marshal(body)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(text)
}

func reject(w http.ResponseWriter, status int, message string) {
	respond(w, status, map[string]interface{}{"error": status * 100, "message": message})
}

func authenticate(r *http.Request) (username string, err error) {
	hash := sha256.Sum256([]byte(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
	if known, ok := tokens.Load(hash); ok && time.Now().Before(known.(cachedToken).until) {
		return known.(cachedToken).username, nil
	}
	err = pool.QueryRow(r.Context(), `select username from tokens where hash = $1 and revoked_at is null
		and (expires_at is null or expires_at > now())`, hash[:]).Scan(&username)
	if err == nil {
		tokens.Store(hash, cachedToken{username, time.Now().Add(3 * time.Second)})
	}
	return
}

func find(ctx context.Context, owner string, limit *int64) ([]plant, error) {
	rows, err := pool.Query(ctx, selectPlants, owner, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	plants := []plant{}
	for rows.Next() {
		var one plant
		if err := rows.Scan(&one.Name, &one.Tag); err != nil {
			return nil, err
		}
		plants = append(plants, one)
	}
	return plants, rows.Err()
}

func list(w http.ResponseWriter, r *http.Request, owner string) {
	var limit *int64
	if text := r.URL.Query().Get("limit"); text != "" {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil || number < 0 {
			reject(w, 400, "limit must be an integer")
			return
		}
		limit = &number
	}
	if plants, err := find(r.Context(), owner, limit); err != nil {
		reject(w, 500, "internal error")
	} else {
		respond(w, 200, plants)
	}
}

func create(w http.ResponseWriter, r *http.Request, owner string) {
	var body newPlant
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body)
	if err != nil || body.ID == nil || body.Name == nil {
		reject(w, 400, "a plant has an id, a name and perhaps a tag")
		return
	}
	done, err := pool.Exec(r.Context(), insertPlant, owner, *body.ID, *body.Name, body.Tag)
	if err != nil {
		reject(w, 500, "internal error")
	} else if done.RowsAffected() == 0 {
		reject(w, 400, "this id is taken")
	} else {
		respond(w, 200, plant{*body.Name, body.Tag})
	}
}

func remove(w http.ResponseWriter, r *http.Request, owner string) {
	id, err := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/plants/"), 10, 64)
	if err != nil {
		reject(w, 400, "id must be an integer")
	} else if done, err := pool.Exec(r.Context(), deletePlant, owner, id); err != nil {
		reject(w, 500, "internal error")
	} else if done.RowsAffected() == 0 {
		reject(w, 404, "no such plant")
	} else {
		w.WriteHeader(204)
	}
}

type operation func(w http.ResponseWriter, r *http.Request, owner string)

func serve(operations map[string]operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if operation, ok := operations[r.Method]; !ok {
			reject(w, 405, "not allowed here")
		} else if owner, err := authenticate(r); err != nil {
			reject(w, 401, "unknown token")
		} else {
			operation(w, r, owner)
		}
	}
}

func main() {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 10
	if pool, err = pgxpool.ConnectConfig(context.Background(), config); err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) {})
	http.HandleFunc("/plants", serve(map[string]operation{"GET": list, "POST": create}))
	http.HandleFunc("/plants/", serve(map[string]operation{"DELETE": remove}))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
