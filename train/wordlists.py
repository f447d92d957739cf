"""Word lists shared by the dialogue generator. Plain data, no logic."""

NAMES = """Ada Alan Alice Amir Amy Andrea Anna Anton Ben Bella Boris Bruno Carla Carlos Cathy Chen Chloe Clara Colin Dana Daniel
David Diego Dora Dylan Edith Elena Eli Ella Emil Emma Eric Esther Eva Fatima Felix Fiona Frank Frida George Gina Grace Greta
Hana Hannah Harry Hassan Helen Henry Hugo Ian Ida Igor Irene Ivan Jack Jade James Jane Jasmin Jim Joan John Jonas Julia June
Kai Karen Karl Kate Kenji Kim Lara Laura Lena Leo Lily Linda Liam Lisa Louis Lucy Luis Lukas Mara Marco Maria Mark Martha Mary
Max Maya Mei Mia Mila Mohamed Mona Nadia Nina Noah Nora Olga Oliver Olivia Omar Oscar Paul Paula Pedro Peter Petra Priya Rachel
Ravi Rita Robert Rosa Ruth Sam Samira Sara Simon Sofia Stefan Sven Tara Theo Thomas Tim Tina Tom Uma Vera Victor Wendy Will Yara
Yuki Zoe Zara Nils Agnes Bianca Cyrus Dalia Enzo Farah Gwen Holly Imran Joel Kira Lars Mabel Nico Opal Quinn Rory Selma Tariq
Ursula Vince Walter Xenia Yusuf Zelda""".split()

SURNAMES = """Smith Miller Brown Garcia Khan Lee Novak Rossi Silva Weber Young Wright Walker Turner Stone Shaw Scott Reed Price
Parker Owens Nolan Murphy Moore Meyer Long Lane King Keller Jones Hill Hayes Grant Fox Ford Evans Drake Dixon Cole Clark Carter
Burke Brooks Bauer Adams Abbott Baker Berg Costa Cruz Diaz Fischer Hansen Ito Jensen Kim Lopez Mann Nash Okafor Patel""".split()

CITIES = """Paris London Berlin Madrid Rome Vienna Prague Warsaw Lisbon Dublin Oslo Athens Cairo Tokyo Osaka Kyoto Seoul Beijing
Delhi Mumbai Sydney Perth Toronto Montreal Boston Chicago Denver Seattle Austin Dallas Houston Miami Atlanta Phoenix Lima Quito
Bogota Santiago Nairobi Lagos Accra Tunis Istanbul Ankara Zurich Geneva Bern Munich Hamburg Cologne Milan Naples Turin Venice
Lyon Nice Porto Seville Valencia Bilbao Helsinki Stockholm Copenhagen Bergen Riga Vilnius Tallinn Budapest Zagreb Belgrade Sofia
Krakow Gdansk Leeds Oxford Bristol Glasgow Cardiff Bath York Manila Hanoi Jakarta Bangkok Singapore Taipei Dubai Doha Havana
Auckland Hobart Reykjavik Edinburgh Antwerp Utrecht""".split()

CAPITALS = dict(zip(
    """France Germany Spain Italy Austria Poland Portugal Ireland Norway Greece Egypt Japan China India Australia Canada Peru
Ecuador Colombia Chile Kenya Ghana Tunisia Turkey Switzerland Finland Sweden Denmark Latvia Lithuania Estonia Hungary Croatia
Serbia Bulgaria Vietnam Indonesia Thailand Qatar Cuba Iceland Belgium Russia Ukraine Romania Morocco Brazil Argentina Mexico
Iran Iraq Israel Lebanon Jordan Nepal Pakistan Mongolia Slovakia Slovenia Cyprus""".split(),
    """Paris Berlin Madrid Rome Vienna Warsaw Lisbon Dublin Oslo Athens Cairo Tokyo Beijing Delhi Canberra Ottawa Lima Quito
Bogota Santiago Nairobi Accra Tunis Ankara Bern Helsinki Stockholm Copenhagen Riga Vilnius Tallinn Budapest Zagreb Belgrade
Sofia Hanoi Jakarta Bangkok Doha Havana Reykjavik Brussels Moscow Kyiv Bucharest Rabat Brasilia Buenos_Aires Mexico_City Tehran
Baghdad Jerusalem Beirut Amman Kathmandu Islamabad Ulaanbaatar Bratislava Ljubljana Nicosia""".split()))

COLOURS = """red blue green yellow orange purple pink brown black white grey violet turquoise gold silver beige crimson navy teal
olive maroon indigo""".split()

ANIMALS = {"dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack", "horse": "neigh", "pig": "oink",
           "lion": "roar", "frog": "croak", "owl": "hoot", "bee": "buzz", "snake": "hiss", "mouse": "squeak", "rooster": "crow",
           "wolf": "howl", "crow": "caw", "goose": "honk", "donkey": "bray"}

MORE_ANIMALS = """tiger bear fox rabbit deer elephant giraffe zebra monkey panda koala penguin dolphin whale shark eagle parrot
turtle hamster goat otter beaver squirrel hedgehog camel llama""".split()

FOODS = """pizza pasta rice bread soup salad cheese curry sushi tacos pancakes apples bananas oranges grapes pears plums cherries
carrots potatoes tomatoes onions beans lentils noodles waffles honey chocolate cake cookies yogurt eggs butter milk tea coffee
juice lemonade sandwiches dumplings olives mushrooms spinach pumpkin walnuts""".split()

OBJECTS = """book pen cup lamp chair table phone laptop key bag box bottle clock mirror umbrella camera guitar piano drum ball
bike car train boat plane hat coat scarf shoe glove ring watch candle blanket pillow knife fork spoon plate bowl pan basket
bucket brush broom hammer rope ladder tent map compass notebook pencil ruler eraser stapler folder envelope stamp ticket coin
wallet purse vase flower plant tree stone shell feather leaf kite puzzle doll robot radio""".split()

ADJECTIVES = """big small old new fast slow happy sad bright dark heavy light soft hard warm cold clean dirty quiet loud tall
short wide narrow deep strong weak rich poor kind brave calm clever gentle proud shy lazy busy hungry thirsty sleepy tired
fresh sweet sour bitter smooth rough sharp round empty full""".split()

OPPOSITES = {"big": "small", "old": "young", "fast": "slow", "happy": "sad", "bright": "dark", "heavy": "light", "soft": "hard",
             "hot": "cold", "clean": "dirty", "quiet": "loud", "tall": "short", "wide": "narrow", "deep": "shallow",
             "strong": "weak", "rich": "poor", "full": "empty", "open": "closed", "early": "late", "high": "low", "near": "far",
             "inside": "outside", "up": "down", "left": "right", "true": "false", "day": "night", "first": "last",
             "begin": "end", "buy": "sell", "push": "pull", "win": "lose", "love": "hate", "above": "below", "always": "never",
             "before": "after", "black": "white", "brave": "cowardly", "cheap": "expensive", "easy": "difficult", "sweet": "sour",
             "thick": "thin", "wet": "dry", "smooth": "rough", "sharp": "blunt", "awake": "asleep", "alive": "dead",
             "ancient": "modern", "arrive": "leave", "question": "answer", "friend": "enemy", "summer": "winter",
             "same": "different", "give": "take", "yes": "no", "good": "bad", "safe": "dangerous", "polite": "rude"}

JOBS = """teacher doctor nurse baker carpenter pilot farmer engineer painter writer lawyer driver chef gardener plumber singer
dentist librarian photographer mechanic tailor waiter scientist programmer architect electrician firefighter journalist""".split()

HOBBIES = """reading hiking cooking painting swimming cycling chess gardening running singing dancing fishing knitting climbing
photography skiing sailing pottery yoga writing drawing camping birdwatching baking""".split()

SUBJECTS = """maths history biology physics chemistry music art geography literature economics""".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

LETTERS = "abcdefghijklmnopqrstuvwxyz"

COMMON = """apple river stone cloud garden window bridge market forest island castle dragon silver golden winter summer spring
autumn morning evening dinner kitchen school teacher student doctor planet rocket engine signal memory number letter pencil
paper button cotton copper bronze marble desert jungle valley canyon harbor anchor sailor pirate wizard knight prince queen king
crown sword shield arrow target circle square triangle corner center border orange lemon cherry melon pepper ginger butter
sugar honey bread water fire earth wind storm thunder rain snow ice frost sun moon star comet light shadow mirror glass metal
wood iron steel brick sand dust smoke steam music piano violin guitar drum flute song dance paint brush color picture frame
story novel poem page cover title author reader writer editor paper print press news radio phone cable wire switch plug lamp
table chair shelf drawer closet carpet curtain pillow blanket bottle cup plate bowl spoon fork knife pan oven stove fridge clock
watch ring necklace coat jacket shirt dress skirt shoe boot sock glove hat scarf belt pocket bag box basket bucket rope chain
nail hammer saw drill wheel tire road street path trail track train ship boat plane car truck bus bike horse sheep goat chicken
duck goose eagle falcon sparrow robin whale shark salmon tiger lion panther wolf fox bear deer rabbit mouse cat dog turtle frog
lizard snake spider beetle ant bee wasp butterfly flower rose tulip daisy lily grass leaf branch root seed fruit nut berry grain
rice wheat corn bean pea carrot potato tomato onion garlic cabbage lettuce pumpkin soup salad sauce cheese cream milk tea coffee
juice candy cookie cake pie team game ball goal score player coach field court track race medal prize gift party guest host
friend cousin uncle aunt sister brother mother father child baby family house cabin tower palace temple church museum library
theater cinema hotel office factory farm barn fence gate door roof wall floor stair tunnel cave mountain hill lake pond ocean
beach coast wave tide coral pearl shell""".split()

PLURALS = """dogs cats cows ducks horses pigs lions frogs owls bees snakes crows donkeys tigers bears rabbits elephants giraffes zebras monkeys pandas
koalas penguins dolphins whales sharks eagles parrots turtles hamsters goats otters beavers squirrels hedgehogs camels llamas spiders ants butterflies snails""".split()

ACTIONS = """paint cook swim dance draw sing sew ski code drive fly climb fish knit bake whistle juggle skate sail write run ride garden act sculpt""".split()

LANGUAGES = """French German Spanish Italian Polish Dutch Swedish Danish Finnish Greek Turkish Arabic Hindi Japanese Chinese Korean Russian Portuguese Czech Latin""".split()

RELATIVES = """mother father sister brother son daughter aunt uncle cousin niece nephew grandmother grandfather friend neighbour wife husband boss teacher""".split()

SPORTS = """tennis football basketball volleyball hockey golf rugby badminton cricket baseball handball squash chess checkers poker darts bowling""".split()

EVENTS = """exam interview test speech trip wedding talk concert match race flight presentation visit party performance""".split()
