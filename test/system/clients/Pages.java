// Reads all plants page by page, with the standard library alone: java Pages.java <base URL> <token>
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.regex.Pattern;

class Pages {
  public static void main(String[] args) throws Exception {
    var client = HttpClient.newHttpClient();
    var link = Pattern.compile("<([^>]*)>; *rel=\"next\"");
    long plants = 0, pages = 0;
    for (var url = URI.create(args[0] + "/plants?limit=100"); url != null; pages++) {
      var request = HttpRequest.newBuilder(url).header("Authorization", "Bearer " + args[1]).build();
      var response = client.send(request, BodyHandlers.ofString());
      if (response.statusCode() != 200) throw new Exception(url + ": " + response.body());
      plants += Pattern.compile("\"name\":").matcher(response.body()).results().count();
      var next = link.matcher(response.headers().firstValue("Link").orElse(""));
      url = next.find() ? url.resolve(next.group(1)) : null;
    }
    System.out.println(plants + " plants in " + pages + " pages");
  }
}
